//! Log-in shells of a simulated host: how each parses a command line, and how it reports the end of a program.

/// Log-in shell, the `DefaultShell` of OpenSSH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shell {
    /// `cmd.exe`, the default of Windows.
    #[default]
    Cmd,
    /// Windows PowerShell, started with `-c`.
    PowerShell,
    /// bash of Git for Windows.
    Bash,
}

impl Shell {
    /// Returns the words into which the shell splits a command line: a program and its arguments. `None` if the line contains
    /// a control character or one with a special meaning for the shell, or ends with the escape character.
    pub(super) fn words(self, line: &str) -> Option<Vec<String>> {
        let (escape, special) = match self {
            Self::Cmd => ('^', "\"&|<>()%!"),
            Self::PowerShell => ('`', "\"'&|<>(){}$;,@#"),
            Self::Bash => ('\\', "\"'&|<>(){}$;`*?[]~#!"),
        };
        let (mut words, mut word) = (Vec::new(), String::new());
        let mut chars = line.chars();
        while let Some(c) = chars.next() {
            match c {
                ' ' => words.push(std::mem::take(&mut word)),
                c if c == escape => word.push(chars.next()?),
                c if c.is_control() || special.contains(c) => return None,
                c => word.push(c),
            }
        }
        words.push(word);
        words.retain(|word| !word.is_empty());
        Some(words)
    }

    /// Returns the exit status and the message for a program that does not exist.
    pub(super) fn not_found(self, program: &str) -> (u32, String) {
        match self {
            Self::Cmd => (1, format!("'{program}' is not recognized as an internal or external command\r\n")),
            Self::PowerShell => (1, format!("The term '{program}' is not recognized as the name of a cmdlet\r\n")),
            Self::Bash => (127, format!("bash: line 1: {program}: command not found\n")),
        }
    }

    /// Returns the shell's exit status for that of a program.
    pub(super) fn status(self, of_program: u32) -> u32 {
        match self {
            Self::Cmd => of_program,
            Self::PowerShell => u32::from(of_program != 0),
            Self::Bash => of_program & 0xff,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Shell::*, *};

    #[test]
    fn each_shell_has_its_own_words_and_exit_statuses() {
        let words = |shell: Shell, line: &str| shell.words(line).map(|words| words.join("|"));
        for (line, cmd, powershell, bash) in [
            (r"C:\a.exe x", Some(r"C:\a.exe|x"), Some(r"C:\a.exe|x"), Some("C:a.exe|x")),
            (r"C:\\a.exe  x", Some(r"C:\\a.exe|x"), Some(r"C:\\a.exe|x"), Some(r"C:\a.exe|x")),
            ("a^b c`d", Some("ab|c`d"), Some("a^b|cd"), None),
            ("a=b/c:d+e._", Some("a=b/c:d+e._"), Some("a=b/c:d+e._"), Some("a=b/c:d+e._")),
            ("$x", Some("$x"), None, None),
            ("a,b", Some("a,b"), None, Some("a,b")),
            ("a&b", None, None, None),
            ("\"a\"", None, None, None),
            (r"a\", Some(r"a\"), Some(r"a\"), None),
        ] {
            let read = [Cmd, PowerShell, Bash].map(|shell| words(shell, line));
            assert_eq!(read.each_ref().map(Option::as_deref), [cmd, powershell, bash], "{line}");
        }
        for (status, expected) in [(0, [0, 0, 0]), (3, [3, 1, 3]), (0xC000_0135, [0xC000_0135, 1, 0x35])] {
            assert_eq!([Cmd, PowerShell, Bash].map(|shell| shell.status(status)), expected, "{status}");
        }
    }
}
