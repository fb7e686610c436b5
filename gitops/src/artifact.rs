//! The archive that Flux makes of a source.
