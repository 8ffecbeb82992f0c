//! Pure. Texts without secrets.

/// What stands where a secret stood.
pub const REMOVED: &str = "[removed]";

/// Words in the name of a value that is a secret.
const NAMES: [&str; 9] = [
    "password",
    "passwd",
    "secret",
    "token",
    "credential",
    "authorization",
    "apikey",
    "api_key",
    "private",
];

/// `text` without passwords, keys, tokens and credentials in URLs, and without any of `known`,
/// wherever they stand.
///
/// A name that only says where a secret is (`ETCD_PASSWORD_FILE`) keeps its value.
pub fn redact(text: &str, known: &[String]) -> String {
    let mut text = without_keys(text);
    for secret in known.iter().filter(|secret| secret.len() >= 3) {
        text = text.replace(secret.as_str(), REMOVED);
    }
    let lines = text.split_inclusive('\n').map(|line| tokens(&urls(&named(line))));
    lines.collect()
}

/// Removes whole PEM blocks: certificates contain names, keys are secret.
fn without_keys(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("-----BEGIN ") {
        kept.push_str(&rest[..at]);
        kept.push_str(REMOVED);
        let end = rest[at..].find("-----END ").map(|end| at + end + "-----END ".len());
        let end = end.and_then(|end| Some(end + rest[end..].find("-----")? + 5));
        rest = end.map_or("", |end| &rest[end..]);
    }
    kept.push_str(rest);
    kept
}

/// The value behind a name that speaks of a secret: `NAME=value`, `name: value`, `"name":"value"`.
fn named(line: &str) -> String {
    let mut kept = String::new();
    let mut rest = line;
    while let Some(at) = rest.find([':', '=']) {
        let (before, behind) = rest.split_at(at + 1);
        kept.push_str(before);
        let name =
            before[..at].rsplit([' ', ',', '{', ';', '\t', '&', '?']).find(|part| !part.is_empty());
        let name =
            name.unwrap_or_default().trim_matches(['"', '\'', ' ', '\\']).to_ascii_lowercase();
        let is_place =
            name.ends_with("file") || name.ends_with("path") || name.ends_with("location");
        rest = behind;
        if is_place || !NAMES.iter().any(|word| name.contains(word)) {
            continue;
        }
        let start = behind.len() - behind.trim_start_matches([' ', '\\']).len();
        let value = &behind[start..];
        let end = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => value[1..].find(quote).map(|end| end + 2),
            // An Authorization header has blanks in it.
            _ if name.contains("authorization") => value.find(['\n', '"', '\'']),
            _ => value.find([' ', ',', '}', ';', '\n', '&', '"']),
        };
        if !value.trim().is_empty() {
            kept.push_str(&behind[..start]);
            kept.push_str(REMOVED);
            rest = end.map_or("", |end| &value[end..]);
        }
    }
    kept.push_str(rest);
    kept
}

/// `scheme://user:password@host` without what is before the host.
fn urls(line: &str) -> String {
    let mut kept = String::new();
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let (before, behind) = rest.split_at(at + 3);
        kept.push_str(before);
        let end = behind.find(['/', ' ', '"', '\'', ',', '\n']).unwrap_or(behind.len());
        rest = match behind[..end].rfind('@') {
            Some(at) => {
                kept.push_str(REMOVED);
                &behind[at..]
            }
            None => behind,
        };
    }
    kept.push_str(rest);
    kept
}

/// `Bearer …`, and what looks like a JSON Web Token.
fn tokens(line: &str) -> String {
    let mut bearer = false;
    let parts = line.split_inclusive([' ', '"', '\'', ',', '\n', '=']).map(|part| {
        let word = part.trim_end_matches([' ', '"', '\'', ',', '\n', '=']);
        let is_token = (word.starts_with("eyJ") && word.matches('.').count() == 2) || bearer;
        bearer = word.eq_ignore_ascii_case("bearer") || word.eq_ignore_ascii_case("basic");
        match is_token && !word.is_empty() {
            true => format!("{REMOVED}{}", &part[word.len()..]),
            false => part.to_owned(),
        }
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, wanted: &str) {
        let known = ["hunter2".to_owned(), "a".to_owned()];
        assert_eq!(redact(text, &known), wanted);
    }

    #[test]
    fn secrets_go_and_the_rest_stays() {
        check("ETCD_PASSWORD=x y\n", "ETCD_PASSWORD=[removed] y\n");
        check("ETCD_PASSWORD_FILE=/etc/p\n", "ETCD_PASSWORD_FILE=/etc/p\n");
        check(r#"{"password":"a b","x":1}"#, r#"{"password":[removed],"x":1}"#);
        check("token: abc, x: y", "token: [removed], x: y");
        check("said hunter2 to it", "said [removed] to it");
        check("https://u:p@h:1/x and http://h/", "https://[removed]@h:1/x and http://h/");
        check("Authorization: Basic dTpw\nnext", "Authorization: [removed]\nnext");
        check("-H 'x: Bearer abc.def'", "-H 'x: Bearer [removed]'");
        check("see eyJhbGc.eyJzdWI.c2ln here", "see [removed] here");
        check(
            "a\n-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\nb",
            "a\n[removed]\nb",
        );
        check("-----BEGIN RSA PRIVATE KEY-----\ncut", "[removed]");
        check("10.244.1.0/24 via fd00::1 dev eth0", "10.244.1.0/24 via fd00::1 dev eth0");
        check("?access_token=abc&x=1", "?access_token=[removed]&x=1");
        check("\"client-secret\" : \"q\"", "\"client-secret\" : [removed]");
    }

    #[test]
    fn whatever_the_text_nothing_breaks() {
        for text in [
            "password=",
            "password: \"",
            "://",
            "@://@",
            "=:=:",
            "token='ü",
            "://ü@ü",
            "-----BEGIN ",
        ] {
            let once = redact(text, &[]);
            assert_eq!(redact(&once, &[]).is_empty(), once.is_empty());
        }
    }
}
