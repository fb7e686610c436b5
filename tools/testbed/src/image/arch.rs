//! Processors of nodes on which the operator runs. The files for hosts (the payload and `wicd.exe`) are for amd64 in all cases.

use std::str::FromStr;

use devenv::{ARM64_STATIC_TARGET, STATIC_TARGET};

/// Processor architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arch {
    /// x86-64.
    #[default]
    Amd64,
    /// 64-bit ARM.
    Arm64,
}

impl Arch {
    const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    /// Returns the name of the processor in images.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Returns the target for which the operator is compiled.
    pub fn target(self) -> &'static str {
        match self {
            Self::Amd64 => STATIC_TARGET,
            Self::Arm64 => ARM64_STATIC_TARGET,
        }
    }

    /// Returns the C compiler. Debian's compiler for ARM is for another C library, which the program does not use: Rust brings its own musl.
    pub fn compiler(self) -> &'static str {
        match self {
            Self::Amd64 => "musl-gcc",
            Self::Arm64 => "aarch64-linux-gnu-gcc",
        }
    }

    /// Returns the program that adds sections to a program.
    pub fn objcopy(self) -> &'static str {
        match self {
            Self::Amd64 => "objcopy",
            Self::Arm64 => "aarch64-linux-gnu-objcopy",
        }
    }

    /// Returns flags of the C compiler. They avoid functions of other C libraries and of the compiler's library, which the linker does not find.
    pub(super) fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Amd64 => &[],
            Self::Arm64 => &["-mno-outline-atomics", "-U_FORTIFY_SOURCE"],
        }
    }

    /// Returns advice on how to install what is missing.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Amd64 => "`cargo xtask setup` installs what is missing",
            Self::Arm64 => {
                "on Debian, install what is missing with `cargo xtask setup`, `rustup target add aarch64-unknown-linux-musl` and \
                 `apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross`; without access \
                 to static.rust-lang.org, rustup cannot add the target, and this image cannot be built"
            }
        }
    }

    /// Reports whether a program is for this processor, by its ELF header.
    pub fn runs(self, program: &[u8]) -> bool {
        let machine: u16 = match self {
            Self::Amd64 => 62,
            Self::Arm64 => 183,
        };
        program.starts_with(b"\x7fELF\x02\x01") && program.get(18..20) == Some(&machine.to_le_bytes())
    }
}

impl FromStr for Arch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|arch| arch.name() == text);
        found.ok_or_else(|| format!("{text:?} is neither amd64 nor arm64"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_recognized_by_their_processor() {
        let elf = |head: &[u8], machine: u8| [head, &[0; 12], &[machine, 0]].concat();
        let little = b"\x7fELF\x02\x01".as_slice();
        for (about, program, amd64, arm64) in [
            ("x86-64", elf(little, 62), true, false),
            ("aarch64", elf(little, 183), false, true),
            ("risc-v", elf(little, 243), false, false),
            ("of 32 bits", elf(b"\x7fELF\x01\x01", 62), false, false),
            ("cut off", little.to_vec(), false, false),
            ("a script", b"#!/bin/sh and so on".to_vec(), false, false),
        ] {
            assert_eq!((Arch::Amd64.runs(&program), Arch::Arm64.runs(&program)), (amd64, arm64), "{about}");
        }
        assert!("arm64".parse() == Ok(Arch::Arm64) && "aarch64".parse::<Arch>().is_err());
    }
}
