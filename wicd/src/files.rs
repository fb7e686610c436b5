//! Reading, writing and placing files such that a crash leaves the old file or the new one.
