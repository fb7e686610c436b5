//! Integration tests of the test bed itself: the product's tests rely on it.

mod control_plane;
mod host_kubelet;
mod node;
mod sim;
mod wine_host;
