//! Container Credential Guard plugin of a pool. The payload may have several plugins: a host gets only that of its pool.

use api::{
    TemplateSpec,
    host::{CredentialPlugin, path},
    payload::File,
};

use super::RenderError;

/// Returns the plugin of a pool, with the path of its library; `None` if the pool names no plugin.
pub(super) fn of_pool(template: &TemplateSpec) -> Option<CredentialPlugin> {
    let plugin = template.gmsa.as_ref()?.plugin.as_ref()?;
    Some(CredentialPlugin {
        clsid: plugin.clsid.to_ascii_uppercase(),
        library: format!(r"{}\{}", path::CREDENTIAL_PLUGINS, plugin.file),
    })
}

/// Returns the files of the payload without the libraries of other plugins.
///
/// # Errors
/// [`RenderError::Setting`] if the payload lacks the library of the plugin.
pub(super) fn files(mut files: Vec<File>, plugin: Option<&CredentialPlugin>) -> Result<Vec<File>, RenderError> {
    let is_its_library = |f: &File| plugin.is_some_and(|p| f.destination.eq_ignore_ascii_case(&p.library));
    files.retain(|f| !is_library(&f.destination) || is_its_library(f));
    match plugin {
        Some(plugin) if !files.iter().any(is_its_library) => Err(RenderError::Setting {
            field: "template.spec.gmsa.plugin.file",
            value: plugin.library.rsplit('\\').next().unwrap_or_default().to_owned(),
            problem: "the payload has no such plugin; put it into the directory ccg of a folder, and make the image again with `make image PROGRAMS=FOLDER` (docs/guide/upgrade.md#the-payload)",
        }),
        _ => Ok(files),
    }
}

fn is_library(destination: &str) -> bool {
    let directory = destination.rsplit_once('\\').map_or("", |(directory, _)| directory);
    directory.eq_ignore_ascii_case(path::CREDENTIAL_PLUGINS)
}

#[cfg(test)]
mod tests {
    use api::GmsaSettings;

    use super::*;

    fn pool(file: &str) -> TemplateSpec {
        let clsid = "{ccc2a336-d7f3-4818-a213-272b7924213e}".into();
        let plugin = Some(api::CredentialPlugin { file: file.into(), clsid });
        TemplateSpec { gmsa: Some(GmsaSettings { accounts: None, plugin }), ..TemplateSpec::default() }
    }

    #[test]
    fn a_host_gets_only_the_plugin_of_its_pool() {
        let payload = [
            r"C:\k\kubelet.exe",
            r"C:\windows\wicd-ccg\a.dll",
            r"c:\Windows\wicd-CCG\B.dll",
            r"C:\windows\wicd-ccg.exe",
        ];
        let all = || payload.map(|d| File { destination: d.into(), ..File::default() }).to_vec();
        for (plugin, expected) in [
            (None, Ok(vec![payload[0], payload[3]])),
            (Some("a.dll"), Ok(vec![payload[0], payload[1], payload[3]])),
            (Some("b.dll"), Ok(vec![payload[0], payload[2], payload[3]])),
            (Some("c.dll"), Err("template.spec.gmsa.plugin.file is \"c.dll\": the payload has no such plugin")),
            (Some("kubelet.exe"), Err("the payload has no such plugin")),
        ] {
            let of_pool = plugin.and_then(|file| of_pool(&pool(file)));
            let found = files(all(), of_pool.as_ref());
            match (found, expected) {
                (Ok(found), Ok(expected)) => {
                    assert_eq!(found.iter().map(|f| f.destination.as_str()).collect::<Vec<_>>(), expected);
                }
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (found, _) => panic!("{plugin:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn the_class_id_is_in_upper_case() {
        let plugin = of_pool(&pool("a.dll")).unwrap();
        assert_eq!(plugin.clsid, "{CCC2A336-D7F3-4818-A213-272B7924213E}");
        assert_eq!(plugin.library, r"C:\windows\wicd-ccg\a.dll");
        assert_eq!(of_pool(&TemplateSpec::default()), None);
    }
}
