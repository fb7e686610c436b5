//! A Git repository on disk, and what a server adds to it.
