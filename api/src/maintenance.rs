//! State of a node's maintenance, as an annotation of the Node shows it.

use std::fmt;

/// Maximum length of a maintenance reason, in characters.
pub const MAX_REASON_CHARS: usize = 200;

/// Defines the type, the names and the list of all states from one list.
macro_rules! states {
    ($($(#[doc = $doc:expr])+ $state:ident,)+) => {
        /// State of a requested maintenance. The names are part of the API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum MaintenanceState {
            $($(#[doc = $doc])+ $state,)+
        }

        impl MaintenanceState {
            /// All states of a maintenance.
            pub const ALL: &[Self] = &[$(Self::$state),+];

            /// Returns the name of the state in annotations.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$state => stringify!($state),)+
                }
            }
        }
    };
}

states! {
    /// The maintenance waits for its turn.
    Waiting,
    /// There is no maintenance: the node is on hold, or a user refuses what the host requests.
    Held,
    /// The node is cordoned, and its pods are evicted.
    Draining,
    /// The node is empty and stays empty: the host may be patched and restarted.
    Drained,
    /// The request is withdrawn, and the node stays cordoned until the operator has verified it.
    Returning,
}

impl MaintenanceState {
    /// Returns the state that an annotation names.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|s| s.as_str() == word)
    }
}

impl fmt::Display for MaintenanceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for state in MaintenanceState::ALL {
            assert_eq!(MaintenanceState::parse(&state.to_string()), Some(*state));
        }
        for other in ["", "drained", "Drained "] {
            assert_eq!(MaintenanceState::parse(other), None);
        }
    }
}
