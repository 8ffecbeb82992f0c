//! The installed files and the documents match the executable.
#![allow(clippy::unwrap_used, reason = "a test stops at the first failure")]

#[path = "packaging/blocks.rs"]
mod blocks;
#[path = "packaging/chart.rs"]
mod chart;
#[path = "packaging/crds.rs"]
mod crds;
#[path = "packaging/every_fix.rs"]
mod every_fix;
#[path = "packaging/fixes.rs"]
mod fixes;
#[path = "packaging/manifests.rs"]
mod manifests;
#[path = "packaging/manual.rs"]
mod manual;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use humanz::plan::pod::LinkIdentity;
use humanz::settings::flags::VARIABLES;

#[test]
fn the_example_of_agent_env_has_every_setting_with_its_default() {
    let example = read("packaging/agent.env");
    let lines = example.lines().filter_map(|line| line.strip_prefix('#')?.split_once('='));
    let settings: Vec<(&str, &str)> = lines.filter(|(name, _)| is_variable(name)).collect();
    for variable in VARIABLES {
        let shown = settings.iter().find(|(name, _)| *name == variable.name);
        let (_, value) = shown.unwrap_or_else(|| panic!("{} is missing", variable.name));
        // Without a default, or with a detected one, the file has an example.
        if !matches!(variable.default, "" | "auto" | "etcd") {
            assert_eq!(*value, variable.default, "{}", variable.name);
        }
    }
    contains_only_settings(settings.iter().map(|(name, _)| *name).collect());
}

/// Every test that a guide mentions exists.
#[test]
fn every_test_that_the_guides_mention_exists() {
    let mut grep = Command::new("grep");
    let grep = grep.args(["-rhoE", "^ *fn [a-z0-9_]+", "tests", "src"]).current_dir(root());
    let tests = String::from_utf8(grep.output().unwrap().stdout).unwrap();
    let functions = tests.lines().filter_map(|line| line.trim_start().strip_prefix("fn "));
    let tests: BTreeSet<&str> = functions.collect();
    for guide in ["packaging/operations.md", "packaging/migration.md", "packaging/trust.md"] {
        let text = read(guide);
        let named = text.split('`').skip(1).step_by(2).filter(|word| {
            word.matches('_').count() >= 3 && !word.contains(|c: char| c.is_uppercase() || c == ' ')
        });
        let named: BTreeSet<&str> = named.collect();
        assert!(named.len() > 3, "{guide} names no tests");
        let missing: Vec<_> = named.difference(&tests).collect();
        assert!(missing.is_empty(), "{guide}: {missing:?}");
    }
}

/// The documents for people, and where each lies.
const DOCUMENTS: [&str; 18] = [
    "README.md",
    ".github/CONTRIBUTING.md",
    ".github/SECURITY.md",
    "packaging/architecture.md",
    "packaging/coexistence.md",
    "packaging/contiv.md",
    "packaging/migration.md",
    "packaging/operations.md",
    "packaging/policy.md",
    "packaging/tenants.md",
    "packaging/trust.md",
    "packaging/humanz-agent.8",
    "packaging/humanz-agent-cluster.8",
    "packaging/humanz-agent-host.8",
    "packaging/humanz-agent-paths.8",
    "packaging/humanz-agent-policy.8",
    "packaging/humanz-agent-setup.8",
    "packaging/humanz.5",
];

#[test]
fn every_link_in_the_documents_leads_to_a_file() {
    for document in DOCUMENTS {
        let folder = root().join(document).parent().unwrap().to_owned();
        for link in read(document).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap();
            assert!(file.is_empty() || folder.join(file).is_file(), "{document}: {link}");
        }
    }
}

/// Every file of these folders that a document mentions by its path.
#[test]
fn every_path_in_the_documents_exists() {
    for document in DOCUMENTS {
        let text = read(document);
        let words = text.split(|c: char| c.is_whitespace() || "`(),;#".contains(c));
        for word in
            words.filter(|word| word.starts_with("packaging/") || word.starts_with("tests/"))
        {
            let path = root().join(word.trim_end_matches(['.', ':']));
            assert!(path.exists(), "{document}: {word}");
        }
    }
}

/// What is typed in a document: code spans and the lines of blocks, without prompts.
fn commands(document: &str) -> Vec<String> {
    let text = read(document);
    let mut typed: Vec<String> = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.starts_with("```") {
            in_block = !in_block;
        } else if in_block || line.starts_with("    ") {
            typed.push(line.trim().trim_start_matches("# ").to_owned());
        } else {
            typed.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    for line in &mut typed {
        // Comments and further commands.
        for end in ["  #", " | ", " && ", " > ", ";"] {
            line.truncate(line.find(end).unwrap_or(line.len()));
        }
    }
    typed
}

#[test]
fn every_command_in_the_documents_can_be_typed() {
    let makefile = read("Makefile");
    let is_target = |word: &str| makefile.lines().any(|line| line.starts_with(&format!("{word}:")));
    let mut count = 0;
    for document in DOCUMENTS.into_iter().filter(|document| document.ends_with(".md")) {
        for line in commands(document) {
            let words: Vec<&str> =
                line.split_whitespace().skip_while(|word| word.contains('=')).collect();
            match words[..] {
                ["make", .., last] if last != "…" => {
                    let targets = words[1..].iter().filter(|word| !word.contains('='));
                    let targets = targets.take_while(|word| {
                        word.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '-'))
                    });
                    let missing: Vec<_> = targets.filter(|word| !is_target(word)).collect();
                    assert!(missing.is_empty(), "{document}: {line}: {missing:?}");
                }
                ["cargo", "test", ref options @ ..] => is_test(document, &line, options),
                ["humanz-agent", ref typed @ ..] if !typed.contains(&"…") => {
                    is_subcommand(document, &line, typed)
                }
                _ => continue,
            }
            count += 1;
        }
    }
    assert!(count > 60, "{count} commands were found");
}

/// The test or module of `cargo test`, and its filter, exist.
fn is_test(document: &str, line: &str, options: &[&str]) {
    let exists = |path: &str| root().join(path).exists();
    let found = match options {
        [] => true,
        ["--test", name, ..] => {
            exists(&format!("tests/{name}/main.rs")) || exists(&format!("tests/{name}.rs"))
        }
        ["--lib", module] => exists(&format!("src/{}.rs", module.replace("::", "/"))),
        _ => false,
    };
    assert!(found, "{document}: {line}");
    if let ["--test", name, "--", filter] | ["--test", name, filter] = options {
        let mut grep = Command::new("grep");
        let grep = grep.args(["-rqE", &format!("^(fn|mod) .*{filter}"), &format!("tests/{name}")]);
        assert!(grep.current_dir(root()).status().unwrap().success(), "{document}: {line}");
    }
}

/// The command line takes it.
fn is_subcommand(document: &str, line: &str, typed: &[&str]) {
    use argh::FromArgs;
    let words = typed.iter().map(|word| word.trim_matches('\'').to_owned()).collect();
    let words = humanz::command::arguments::normal(words);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let Err(early) = humanz::command::Arguments::from_args(&["humanz-agent"], &words) {
        // As a sentence mentions one.
        let is_mention = early.output.starts_with("Required positional arguments not provided");
        assert!(early.status.is_ok() || is_mention, "{document}: {line}: {}", early.output);
    }
}

/// The guides lie in one folder where they are installed, and lead to each other there.
#[test]
fn every_guide_and_manual_page_is_installed() {
    let makefile = read("Makefile");
    for entry in std::fs::read_dir(root().join("packaging")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let path = format!("packaging/{name}");
        if [".md", ".5", ".8"].iter().any(|end| name.ends_with(end)) {
            assert!(makefile.contains(&path), "{path}");
            assert!(DOCUMENTS.contains(&path.as_str()), "{path} is not verified here");
        }
    }
}

#[test]
fn the_first_page_is_short() {
    assert!(read("README.md").lines().count() <= 120);
}

/// It shows the page as the tests take it (CONTRIBUTING), and loads fast.
#[test]
fn the_first_page_shows_pictures_of_the_repository() {
    let text = read("README.md");
    let after = text.split("![").skip(1).filter_map(|rest| rest.split_once("]("));
    let shown: Vec<&str> = after.filter_map(|(_, rest)| rest.split(')').next()).collect();
    assert!(shown.contains(&"packaging/doc/page.png"), "{shown:?}");
    for picture in shown {
        let bytes = std::fs::read(root().join(picture)).unwrap();
        assert!(bytes.len() < 200_000, "{picture}: {} bytes", bytes.len());
        let is_picture = bytes.starts_with(b"\x89PNG") || bytes.starts_with(b"<svg");
        assert!(is_picture, "{picture}");
    }
}

/// Words without a technical meaning.
const PRIVATE: [&str; 8] =
    ["told", "mend", "mends", "mended", "whom", "cure", "at fault", "is named"];

#[test]
fn the_documents_use_plain_words() {
    let more = ["packaging/agent.env", "packaging/monitoring/alerts.yml"];
    for document in DOCUMENTS.iter().chain(&more) {
        let found = private_words(&read(document));
        assert!(found.is_empty(), "{document}: {found:?}");
    }
}

#[test]
fn identifiers_and_messages_use_plain_words() {
    let folders = [root().join("src"), root().join("tests")];
    let files = folders.iter().flat_map(|folder| sources(folder));
    for file in files.filter(|file| !file.ends_with("tests/packaging.rs")) {
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let mut found = private_words(&code.collect::<Vec<_>>().join("\n"));
        // A field of the status of earlier releases.
        found.retain(|word| *word != "cure");
        assert!(found.is_empty(), "{}: {found:?}", file.display());
    }
}

fn private_words(text: &str) -> Vec<&'static str> {
    let text = text.to_lowercase();
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let text = format!(" {} ", words.collect::<Vec<_>>().join(" "));
    PRIVATE.into_iter().filter(|word| text.contains(&format!(" {word} "))).collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let is_ours = |path: &PathBuf| {
        path.extension().is_some_and(|end| ["rs", "html", "js"].iter().any(|ours| end == *ours))
    };
    let files = files.into_iter().filter(is_ours);
    files.chain(folders.iter().flat_map(|folder| sources(folder))).collect()
}

#[test]
fn everything_is_installed_below_the_folder_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let source = tempfile::tempdir().unwrap();
    for name in ["LICENSE", "Makefile", "packaging"] {
        let copied =
            Command::new("cp").arg("-a").arg(root().join(name)).arg(source.path()).status();
        assert!(copied.unwrap().success());
    }
    std::fs::create_dir(source.path().join("dist")).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_humanz-agent"), source.path().join("dist/humanz-agent"))
        .unwrap();
    let install = || {
        let made = Command::new("make")
            .args(["install", "PREFIX=/usr"])
            .arg(format!("DESTDIR={}", folder.path().display()))
            .current_dir(source.path())
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    install();
    let installed = |path: &str| folder.path().join(path.trim_start_matches('/'));
    let unit = std::fs::read_to_string(installed("/usr/lib/systemd/system/humanz-agent.service"));
    let unit = unit.unwrap();
    let program = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    for path in [
        program,
        "/usr/lib/systemd/system/humanz-connectivity.socket",
        "/usr/lib/systemd/system/humanz-connectivity@.service",
        "/usr/libexec/netavark/humanz",
        "/usr/share/man/man5/humanz.5",
        "/usr/share/man/man8/humanz-agent.8",
        "/usr/share/man/man8/humanz-agent-cluster.8",
        "/usr/share/man/man8/humanz-agent-host.8",
        "/usr/share/man/man8/humanz-agent-paths.8",
        "/usr/share/man/man8/humanz-agent-policy.8",
        "/usr/share/man/man8/humanz-agent-setup.8",
        "/usr/share/doc/humanz/copyright",
        "/usr/share/humanz/alerts.yml",
        "/usr/share/humanz/dashboard.json",
        "/usr/share/humanz/haproxy.cfg",
        "/usr/share/humanz/podmonitor.yaml",
        "/usr/share/humanz/prometheusrule.yaml",
        "/usr/share/humanz/proxy.yaml",
        "/usr/share/doc/humanz/architecture.md",
        "/usr/share/doc/humanz/coexistence.md",
        "/usr/share/doc/humanz/contiv.md",
        "/usr/share/doc/humanz/doc/overview.svg",
        "/usr/share/doc/humanz/doc/page.png",
        "/usr/share/doc/humanz/migration.md",
        "/usr/share/doc/humanz/operations.md",
        "/usr/share/doc/humanz/policy.md",
        "/usr/share/doc/humanz/tenants.md",
        "/usr/share/doc/humanz/trust.md",
        "/usr/share/licenses/humanz/LICENSE",
    ] {
        assert!(installed(path).is_file(), "{path}");
    }
    for path in [
        "/usr/share/bash-completion/completions/humanz-agent",
        "/usr/share/zsh/site-functions/_humanz-agent",
        "/usr/share/fish/vendor_completions.d/humanz-agent.fish",
    ] {
        let text = std::fs::read_to_string(installed(path)).unwrap();
        assert!(text.contains("uninstall") && text.contains("dry-run"), "{path}");
    }
    for path in [
        "/usr/lib/systemd/networkd.conf.d/50-humanz.conf",
        "/usr/lib/systemd/network/00-humanz.network",
        "/usr/lib/systemd/network/00-humanz.link",
        "/usr/lib/NetworkManager/conf.d/50-humanz.conf",
    ] {
        assert!(installed(path).is_file(), "{path}");
    }
    let settings = installed("/etc/humanz/agent.env");
    let line = |start: &str| unit.lines().find(|line| line.starts_with(start));
    assert_eq!(line("EnvironmentFile="), None, "the agent reads its file by itself");
    let reload: Vec<&str> = unit.lines().filter(|line| line.starts_with("ExecReload=")).collect();
    assert!(reload[0].contains("check-config"), "first: {reload:?}");
    assert_eq!(reload[1..], ["ExecReload=/bin/kill -HUP $MAINPID"]);
    assert_eq!(line("RestartPreventExitStatus="), None, "the agent is started again in any case");
    assert!(settings.is_file());
    std::fs::write(&settings, "ETCD_HOST=mine\n").unwrap();
    install();
    assert_eq!(std::fs::read_to_string(&settings).unwrap(), "ETCD_HOST=mine\n", "kept");
}

/// What overlays change is called in the manifest as the base says.
#[test]
fn the_base_for_overlays_has_a_manifest_with_the_names_that_it_shows() {
    let base = read("packaging/kustomization.yaml");
    let resources = base.lines().find_map(|line| line.strip_prefix("resources: ["));
    let manifest = read(&format!("packaging/{}", resources.unwrap().trim_end_matches(']')));
    let named = |start: &str| {
        let (_, rest) = base.split_once(start).unwrap_or_else(|| panic!("{start}"));
        rest.split([',', '}']).next().unwrap().to_owned()
    };
    assert!(manifest.contains(&format!("image: {}:", named("images: [{name: "))));
    let configuration = named("configMapGenerator: [{name: ");
    assert!(manifest.contains(&format!("kind: ConfigMap\nmetadata:\n  name: {configuration}\n")));
    assert!(manifest.contains(&format!("configMapRef: {{name: {configuration}}}")));
}

#[test]
fn the_bill_of_materials_has_every_crate_of_the_executable() {
    let folder = tempfile::tempdir().unwrap();
    let made = |name: &str| {
        let file = folder.path().join(name);
        let mut sbom = Command::new(root().join("packaging/sbom"));
        let ended = sbom.arg(env!("CARGO_BIN_EXE_humanz-agent")).arg(&file).output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        std::fs::read_to_string(file).unwrap()
    };
    let text = made("one");
    assert_eq!(text, made("two"), "the same every time");
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["bomFormat"], "CycloneDX");
    let own = &found["metadata"]["component"];
    assert_eq!(own["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(own["hashes"][0]["content"].as_str().unwrap().len(), 64);
    let components = found["components"].as_array().unwrap();
    let names: BTreeSet<&str> = components.iter().map(|it| it["name"].as_str().unwrap()).collect();
    for name in ["nix", "etcd-client", "rustls", "ring", "serde_json"] {
        assert!(names.contains(name), "{name} is missing");
    }
    assert!(!names.contains("proptest") && !names.contains("humanz"), "{names:?}");
    let lock = read("Cargo.lock");
    for component in components {
        let field = |key: &str| component[key].as_str().unwrap();
        let locked = format!("name = \"{}\"\nversion = \"{}\"\n", field("name"), field("version"));
        assert!(lock.contains(&locked), "{component}");
        let licence = component["licenses"][0]["expression"].as_str().unwrap();
        assert!(!licence.is_empty() && !licence.contains('/'), "{component}");
    }
}

/// The drop-in files make systemd-networkd, udev and NetworkManager ignore our links, and no others.
/// Tried with systemd 252 and NetworkManager 1.42.
#[test]
fn network_managers_ignore_our_links_only() {
    let pod = LinkIdentity { network: "humanz", container_id: "c1", ifname: "eth0" }.host_ifname();
    let names = ["humanz0", "humanz-vx4", "humanz-vx6", pod.as_str()];
    for (file, key) in [
        ("humanz.network", "Name="),
        ("humanz.link", "OriginalName="),
        ("NetworkManager.conf", "unmanaged-devices+="),
    ] {
        let text = read(&format!("packaging/drop-ins/{file}"));
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        let patterns =
            line.split([' ', ';']).map(|word| word.trim_start_matches("interface-name:"));
        let patterns: Vec<&str> = patterns.collect();
        for name in names {
            assert!(patterns.iter().any(|pattern| fits(pattern, name)), "{file}: {name}");
        }
        for foreign in ["eth0", "veth0", "hzone", "docker0"] {
            assert!(!patterns.iter().any(|pattern| fits(pattern, foreign)), "{file}: {foreign}");
        }
    }
}

/// As fnmatch(3), as far as the files use it.
fn fits(pattern: &str, name: &str) -> bool {
    if let Some(rest) = pattern.strip_prefix("[0-9a-f]") {
        return name.starts_with(|c| matches!(c, '0'..='9' | 'a'..='f')) && fits(rest, &name[1..]);
    }
    match pattern.chars().next() {
        None => name.is_empty(),
        Some('*') => pattern == "*",
        Some('?') => !name.is_empty() && fits(&pattern[1..], &name[1..]),
        Some(letter) => name.starts_with(letter) && fits(&pattern[1..], &name[1..]),
    }
}

/// `RUST_LOG` is the logger's own.
fn contains_only_settings(names: BTreeSet<&str>) {
    let known: BTreeSet<&str> = VARIABLES.iter().map(|variable| variable.name).collect();
    let unknown: Vec<_> = names.difference(&known).filter(|name| **name != "RUST_LOG").collect();
    assert!(unknown.is_empty(), "no such settings: {unknown:?}");
}

fn is_variable(word: &str) -> bool {
    let of_variable = |c: char| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit();
    let letter = |c: char| c.is_ascii_uppercase();
    word.len() > 2 && word.starts_with(letter) && word.chars().all(of_variable)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap()
}

#[test]
fn purge_finds_the_agents_copy_however_its_place_is_written() {
    let script = root().join("packaging/deb/postrm");
    for line in [
        "CNI_PLUGIN_LOCATION=/run/cni/humanz",
        "CNI_PLUGIN_LOCATION=\"/run/cni/humanz\"",
        "CNI_PLUGIN_LOCATION='/run/cni/humanz' ",
        "  CNI_PLUGIN_LOCATION = /run/cni/humanz",
        "CNI_PLUGIN_LOCATION=/other/x\nCNI_PLUGIN_LOCATION=\"/run/cni/humanz\"",
    ] {
        // In mounts of its own, which end with the shell.
        let steps = format!(
            "for dir in /etc /run /var/lib; do mount -t tmpfs none $dir; done
             mkdir -p /etc/systemd/system /var/lib/humanz /run/cni
             cat > /var/lib/humanz/agent.env <<'END'\n{line}\nEND
             printf '#!/bin/sh\\necho \"called $*\"' > /run/cni/humanz-agent
             chmod +x /run/cni/humanz-agent
             sh /dev/stdin purge"
        );
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private", "sh", "-ec", &steps]);
        // The mounts may hide the script.
        unshare.stdin(std::fs::File::open(&script).unwrap());
        let output = unshare.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let wanted = "called --env-file /var/lib/humanz/agent.env uninstall --purge\n";
        assert_eq!(said, wanted, "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
