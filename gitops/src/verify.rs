//! Whether a commit or tag was signed by somebody who is believed.
