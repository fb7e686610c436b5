//! Tests of the command line and the environment.

use super::*;

#[test]
fn a_duration_has_a_known_unit_or_is_a_number_of_seconds() {
    for (text, seconds) in [("90", 90), ("90s", 90), ("10m", 600), ("6h", 21600)] {
        assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
    }
    assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
    for bad in ["", "s", "1d", "-1s", "1.5h", " 1s", "5000000000000000h", "8785h", "31622400001ms"] {
        assert!(duration(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_long_or_short_lease_duration_is_refused() {
    for (text, taken) in [("15s", true), ("10m", true), ("601s", false), ("0s", false), ("999ms", false)] {
        assert_eq!(lease_duration(text).is_ok(), taken, "{text}");
    }
}

#[test]
fn a_certificate_lifetime_that_is_never_approved_is_refused() {
    for (text, taken) in [
        ("120h", true),
        ("168h", true),
        ("604801", false),
        ("8760h", false),
        ("10m", true),
        ("599s", false),
        ("0", false),
    ] {
        assert_eq!(wicd_certificate_life(text).is_ok(), taken, "{text}");
    }
    let run = |args: &[&str]| Run::try_parse_from(["run"].iter().chain(args));
    let refusal = run(&["--wicd-certificate-lifetime", "169h"]).unwrap_err().to_string();
    assert!(refusal.contains("\"169h\" is not between 10m and 168h"), "{refusal}");
    // wicd has the same default.
    assert_eq!(run(&[]).unwrap().wicd_certificate_lifetime, api::host::WICD_CERTIFICATE_LIFE);
}

#[test]
fn the_command_line_is_consistent() {
    client().debug_assert();
    Operator::command().debug_assert();
}

/// `kubectl exec deploy/windows-node-pools -- kubectl-windows_node_pools plan` has the environment of the operator, but
/// not its arguments.
#[test]
fn every_setting_can_be_set_by_the_environment() {
    for arg in Run::command().get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help") {
        let env = arg.get_env().map(|env| env.to_string_lossy().into_owned());
        assert!(env.is_some_and(|env| env == env.to_uppercase()), "{}", arg.get_id());
    }
}

#[test]
fn the_help_of_each_command_lists_its_exit_statuses() {
    let leaves = |command: &clap::Command| match command.get_subcommands().cloned().collect::<Vec<_>>() {
        none if none.is_empty() => vec![command.clone()],
        below => below,
    };
    let (client, operator) = (client(), Operator::command());
    for mut command in client.get_subcommands().chain(operator.get_subcommands()).flat_map(leaves) {
        let help = command.render_long_help().to_string();
        assert!(help.contains("Exit status:\n  0  "), "{help}");
    }
}

#[test]
fn the_short_help_of_plan_fits_on_a_screen() {
    let mut plan = client().find_subcommand("plan").unwrap().clone();
    let (short, long) = (plan.render_help().to_string(), plan.render_long_help().to_string());
    assert!(short.lines().count() < 25 && short.contains("--filename"), "{short}");
    assert!(long.contains("Settings of the operator:") && long.contains("--api-server"), "{long}");
}

/// `--help` shows the values of variables, and a proxy may have a password.
#[test]
fn help_shows_no_secret() {
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"] {
        let command = Run::command();
        let arg = command.get_arguments().find(|arg| arg.get_env().is_some_and(|env| env == name)).unwrap();
        assert!(arg.is_hide_env_values_set(), "{name}");
    }
}
