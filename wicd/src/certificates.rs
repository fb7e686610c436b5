//! Keys, requests and certificates of kubelet and of wicd.
