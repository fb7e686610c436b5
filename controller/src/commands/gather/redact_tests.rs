//! Tests of the redaction of secrets.

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Texts with `{}` in place of a secret. The text after `\u{1}` must not be redacted.
const TEMPLATES: [&str; 89] = [
    "<AdministratorPassword>\n<PlainText>true</PlainText>\n<Value>{}</Value>\n</AdministratorPassword><x>y</x>\u{1}<x>y</x>",
    "<wcm:Password><A/>{}</wcm:Password><x>y</x>\u{1}<x>y</x>",
    "<Password wcm:action=\"add\">{}</Password>",
    "Cookie: session={}; theme=dark",
    "GET /x\nSet-Cookie: a={}\nAccept: *\u{1}Accept: *",
    "{\"headers\":{\"cookie\":\"a={}\"},\"status\":200}\u{1}\"status\":200",
    "pushed with ghp_{}0000000000 to origin\u{1}to origin",
    "glpat-{}0000000000",
    "xoxb-{}0000000000 in a line\u{1}in a line",
    "AKIA{}00000000",
    "login sha256~{}0000000000\u{1}login",
    "vault: hvs.{}0000000000",
    "--password\n{}\n--user\nme\u{1}--user",
    "name: DB_PASSWORD\nvalue: {}\nnext: me\u{1}next: me",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\nx\u{1}CERTIFICATE",
    "https://user:{}@proxy.example.com:3128/x\u{1}proxy.example.com:3128/x",
    "https://{}@git.example.com/x\u{1}git.example.com/x",
    "http://user:a/{}@proxy.example.com\u{1}proxy.example.com",
    "fatal: https://user:p@{}@git.example.com/a.git",
    "Authorization: Bearer {}",
    "authorization: Basic {}",
    "Authorization: Custom one two {}",
    r#"headers: {"Authorization": ["Bearer {}"], "Accept": "*"}"#,
    r#""authorization":"token {}""#,
    "curl -H 'Proxy-Authorization: Basic {}' x",
    "the server answered Bearer x{}0 with 401\u{1}with 401",
    "token eyJhbGciOiJSUzI1NiJ9.eyJ{}.sig{} was refused\u{1}was refused",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n{}\n-----END RSA PRIVATE KEY-----\nafter\u{1}after",
    "-----BEGIN OPENSSH PRIVATE KEY-----\n{}",
    "MIIE{}\n{}\n-----END PRIVATE KEY-----\nafter\u{1}after",
    r#"{"pem": "-----BEGIN EC PRIVATE KEY-----\n{}\n-----END EC PRIVATE KEY-----\n", "a": 1}"#,
    "-----BEGIN PGP PRIVATE KEY BLOCK-----\n{}\n-----END PGP PRIVATE KEY BLOCK-----",
    r#"{"auths": {"registry.example.com": {"auth": "{}", "email": "a"}}}"#,
    r#"{"auths":{"registry.example.com":{"whatever":"{}"}}}"#,
    r#"{\"auths\":{\"r\":{\"auth\":\"{}\"}}}"#,
    "MY_PASSWORD={}",
    "export API_KEY={} with spaces",
    "set SECRET={}",
    "ACCESS_TOKEN: {}",
    "password: '{}'",
    "password: |\n  {}\n  {}\nuser: me\u{1}user: me",
    "a: 1\nlist:\n- password: >-\n    {}\n- b: x\u{1}b: x",
    "clientSecret: \"a\\\"{}\"",
    "client-key-data: {}",
    r#"level=info msg="x" password={} user=me"#,
    r#"{"level":"info","fields":{"msg":"token=\"{}\" x"}}"#,
    r#"{"message":"{\"password\":\"{}\",\"user\":\"me\"}"}"#,
    r#"{"a":"{\"b\":\"{\\\"secret\\\":\\\"{}\\\"}\"}"}"#,
    "GET /x?access_token={}&a=b HTTP/1.1",
    "AccountName=x;AccountKey={};Suffix=y",
    "wicd.exe --password {} --user me",
    "wicd.exe --token={} --user me",
    "API Key: {}",
    r#"{"name": "DB_PASSWORD", "value": "{}"}"#,
    r#"{"env": [{"name": "SECRET_ID", "value": "{}"}, {"name": "HOST_KEY", "value": "{}"}]}"#,
    "<powershell>$pass = {}</powershell>",
    "wicd says {\"pass\": [\"{}\"",
    r#"{"args": ["--password", "{}"]}"#,
    r#"{"password": ["{}"], "x": 1}"#,
    r#"{"password": {"value": "{}"}}"#,
    "tokens: [a, {}]",
    "<Data Name='Password'>{}</Data><Data Name='User'>me</Data>\u{1}<Data Name='User'>me</Data>",
    "<Data Name=\"ClientSecret\"><![CDATA[a<{}]]></Data>",
    "<AdministratorPassword>\n<Value>{}</Value>\n</AdministratorPassword><x>y</x>\u{1}<x>y</x>",
    "<Data Name='Token'>{}",
    r#""message":"<Data Name=\"Password\">{}</Data>""#,
    r#"<add key="Password" value="{}"/>"#,
    r#"<add key="Password" value="{{}}"/>"#,
    "<Data>{&quot;password&quot;:&quot;{}&quot;,&quot;user&quot;:&quot;me&quot;}</Data>\u{1}</Data>",
    "<Data>x?a=b&amp;sig={}</Data>",
    "x pass={} user=me",
    "DB_PASS: {}",
    "cmdkey /add:x /user:me /pass:{}\u{1}/user:me",
    "https://x.blob.core.windows.net/c/b?sv=2022-11-02&sp=r&sig=a%2B{}%3D\u{1}sv=2022-11-02&sp=r",
    "SECRET_ID={}",
    "HOST_KEY={}",
    "KEY_PEM={}",
    "MY_STORAGEKEY={}",
    "password: &{}",
    "token: &anchor {}",
    "password: {{}}",
    "secret: {a: {}, b: [c, {}]}\nuser: me\u{1}user: me",
    "tokens: [{a: {}}]",
    "password=[{}",
    "password=[a]{} user=me",
    "password={a{} user=me",
    "password: [\n  {}\n]\nuser: me\u{1}user: me",
    "{\n  \"secret\": {\n    \"a\": \"{}\",\n    \"b\": [",
    r#"{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"data\":\"{}\"}"}}}"#,
];

fn check(written: &str, template: &str, secret: &str) -> Result<(), TestCaseError> {
    prop_assert!(!written.contains(secret), "{template}: {written}");
    if let Some((_, stays)) = template.split_once('\u{1}') {
        prop_assert!(written.contains(stays), "{template}: {written}");
    }
    Ok(())
}

fn fill(template: &str, secret: &str) -> String {
    template.split('\u{1}').next().unwrap_or_default().replace("{}", secret)
}

proptest! {
    #[test]
    fn a_secret_is_redacted_in_every_form(
        template in prop::sample::select(TEMPLATES.to_vec()),
        secret in "[A-Za-z0-9]{8}[A-Z0-9][A-Za-z0-9]{3,20}",
        before in "([a-z]{1,8} |\n|[A-Z]{1,4}\t){0,4}",
        after in "(\n[a-z ]{0,10}){0,3}",
    ) {
        let carried = fill(template, &secret);
        check(&text(&carried), template, &secret)?;
        let written = text(&format!("{before}\n{carried}\n{after}"));
        check(&written, template, &secret)?;
        prop_assert_eq!(text(&written), written, "again");
        // The same text in an object.
        let mut object = json!({"data": {"x": carried}, "list": [carried], carried.clone(): 1});
        value(&mut object);
        check(&object.to_string(), "{}", &secret)?;
    }

    #[test]
    fn any_text_and_any_object_is_written(any in "\\PC{0,200}", lines in "([a-zA-Z:=\"'\\\\{}\\[\\]|>@/ -]{0,20}\n){0,8}") {
        for any in [&any, &lines] {
            let once = text(any);
            prop_assert!(once.len() <= any.len() * 12 + 12, "{once}");
            let mut object = json!({any: any, "password": [any, 1, true, null]});
            value(&mut object);
            prop_assert_eq!(&object["password"][1], REDACTED);
        }
    }
}

#[test]
fn data_for_the_diagnosis_is_not_redacted() {
    for stays in [
        "2026-01-01T10:00:00Z INFO controller::secrets: read the Secret openshift/cloud-private-key",
        r#"{"timestamp":"2026-01-01T00:00:00Z","level":"INFO","target":"controller::secrets","fields":{"message":"x"}}"#,
        "host key SHA256:mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE of 10.0.0.1",
        "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIUEQ0Q9Zc5hfcKxJ0J1k1\n-----END CERTIFICATE-----\n",
        "secretName: cloud-private-key\n",
        "automountServiceAccountToken: true\n",
        "tolerations:\n- key: os\n  value: Windows\n",
        "image: registry.example.com/a/b@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "https://api.example.com:6443/api/v1/nodes?limit=500",
        "windowsmachineconfig.openshift.io/pub-key-hash: 1b09c446168c967cf155dad635a1c250641ebcb6cb28d1b301c1999490f9cb9f\n",
        "basic authentication is off; bearer tokens are used",
        "<Event><System><Provider Name='Service Control Manager'/><EventID>7036</EventID><Keywords>0x8080</Keywords></System></Event>",
        "<Data Name='param1'>kubelet</Data>",
        "System.Core, Version=4.0.0.0, Culture=neutral, PublicKeyToken=b77a5c561934e089",
        "clusterroles.rbac.authorization.k8s.io: a role",
        "I0101 reconciler.go:1] Attached volume {\"name\": \"x\"} [a b] &{c}",
        "rest_client_requests_total{code=\"200\",host=\"10.0.0.1:443\"} 5",
    ] {
        assert_eq!(text(stays), stays);
    }
    let log = format!("usage: login <token>\n{}last\n", "line\n".repeat(1000));
    assert!(text(&log).contains("line\nlast"), "the element does not end after its maximum number of lines");
    for stays in [
        json!({"spec": {"host": {"privateKeys": [{"name": "cloud-private-key", "key": "private-key.pem"}]}}}),
        json!({"volumes": [{"name": "key", "secret": {"secretName": "x", "defaultMode": 420}}]}),
        json!({"volumes": [{"serviceAccountToken": {"path": "token", "expirationSeconds": 3607, "audience": "a"}}]}),
        json!({"env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "x", "key": "token"}}}]}),
        json!({"hostKey": {"keyType": "ssh-ed25519", "publicKey": "AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEB"}}),
    ] {
        let mut after = stays.clone();
        value(&mut after);
        assert_eq!(after, stays);
    }
}

#[test]
fn names_of_secrets_are_recognised() {
    const SECRET: &str = "password DB_PASSWORD dbPasswordHash clientSecret token identitytoken KEY API_KEY \
                          private-key.pem client-key-data .dockerconfigjson auth pass DB_PASS sig X-Amz-Signature \
                          SECRET_ID secretId MY_STORAGEKEY HOST_KEY KEY_PEM";
    const HARMLESS: &str = "secretName secretRef tokenFile key publicKey hostKey \
                            windowsmachineconfig.openshift.io/trust-host-key topologyKey keyType author username \
                            monkey bypass passed ACCESS_KEY_ID STORAGEKEY KEY_FILE PUBLIC_KEY SSH_PUB_KEY";
    for (names, expected) in [(SECRET, true), (HARMLESS, false)] {
        for name in names.split_ascii_whitespace() {
            assert_eq!(names_secret(name), expected, "{name}");
        }
    }
    assert!(!names_secret(""));
}

/// Redacts long hostile text. The test takes very long if parts of a line are read repeatedly.
#[test]
fn long_hostile_text_is_redacted_and_grows_little() {
    const LENGTH: usize = 1 << 16;
    for part in [
        "a",
        " ",
        "\"",
        "<",
        "-",
        "=",
        "token=",
        "<a token=x></",
        "a://",
        "a://b:c@",
        "key ",
        "name: ",
        "-----BEGIN ",
        "-----END ",
        "-----BEGIN PRIVATE KEY-----",
        "-----END PRIVATE KEY-----\n",
        "AAAA\n",
        "Bearer ",
        "{",
        "[",
        "{\"a\":",
        "[0,",
        "\\",
        "&quot;",
        "--token ",
        "password: |\n ",
        "<Password>\n",
        "eyJ",
        "AAAA",
        "dG9rZW49eA",
        "token=null <",
        "token \" ",
    ] {
        let hostile = part.repeat(LENGTH / part.len());
        for hostile in [format!("{hostile}x"), format!("<{hostile}"), format!("x {hostile}{}", " ".repeat(LENGTH))] {
            let written = text(&hostile);
            assert!(written.len() <= 12 * hostile.len(), "{part:?}");
        }
    }
}
