//! SSH port of a simulated host: open while the host is on, with the faults of its link.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpStream},
    sync::watch,
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::{
    fault::Fault,
    link::Metered,
    machine::{Machine, State},
    sshd,
};

/// Accepts connections while the machine is on and its port is open, until `stop`.
pub(super) async fn serve(machine: Arc<Machine>, listener: TcpListener, stop: CancellationToken) {
    let open = |s: &State| (s.powered && !s.faults.contains(&Fault::Refuse)).then_some(s.address);
    accept(machine.state(), open, listener, stop, |stream, up| handle(&machine, stream, up)).await;
}

/// Accepts connections at the address that `open` returns for the state, if any, until `stop`. Each connection gets a token that ends with the port.
pub(super) async fn accept<S>(
    mut state: watch::Receiver<S>,
    open: impl Fn(&S) -> Option<SocketAddr>,
    listener: TcpListener,
    stop: CancellationToken,
    handle: impl Fn(TcpStream, &CancellationToken),
) {
    let serve = async {
        let mut listener = Some(listener).filter(|_| open(&state.borrow()).is_some());
        while let Ok(here) = state.wait_for(|s| open(s).is_some()).await.map(|s| open(&s)) {
            let Some(here) = here else { continue };
            let bound = match listener.take().filter(|bound| bound.local_addr().is_ok_and(|address| address == here)) {
                Some(bound) => bound,
                None => rebind(here).await,
            };
            let up = stop.child_token();
            // Connections end with the port, and also when this future is dropped.
            let _cut = up.clone().drop_guard();
            while open(&state.borrow_and_update()) == Some(here) {
                tokio::select! {
                    changed = state.changed() => if changed.is_err() { return },
                    accepted = bound.accept() => if let Ok((stream, _)) = accepted { handle(stream, &up) },
                }
            }
        }
    };
    stop.run_until_cancelled(serve).await;
}

fn handle(machine: &Arc<Machine>, mut stream: TcpStream, up: &CancellationToken) {
    machine.connections.fetch_add(1, Ordering::Relaxed);
    let _ = stream.set_nodelay(true);
    if machine.has(&Fault::Hang) {
        let up = up.clone();
        tokio::spawn(async move {
            let mut ignored = [0; 1024];
            let listen = async { while let Ok(1..) = stream.read(&mut ignored).await {} };
            up.run_until_cancelled(listen).await;
        });
        return;
    }
    let mut wire = Metered::new(stream, up.clone().cancelled_owned(), machine.received.clone());
    let cut = machine.state().borrow().faults.iter().find_map(|f| match f {
        Fault::CutAfterBytes { bytes, once } => Some((*bytes, *once)),
        _ => None,
    });
    if let Some((bytes, once)) = cut {
        let machine = machine.clone();
        wire = wire.with_limit(bytes, move || {
            if once {
                machine.change(|s| s.faults.retain(|f| *f != Fault::CutAfterBytes { bytes, once }));
            }
        });
    }
    tokio::spawn(sshd::serve(machine.clone(), wire));
}

/// Binds an address that this process released a moment ago, as soon as the address is free.
async fn rebind(address: SocketAddr) -> TcpListener {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}
