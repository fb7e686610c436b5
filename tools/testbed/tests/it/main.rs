//! Integration tests of the test bed itself: it must stand where the product's tests build on it.

mod control_plane;
mod host_kubelet;
mod node;
mod sim;
mod wine_host;
