//! Integration tests of the test bed, on which the product's tests rely.

mod control_plane;
mod host_kubelet;
mod node;
mod wine_host;
