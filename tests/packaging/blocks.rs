//! What the documents show as typed or as a file is run, or at least parsed, by a test.

use std::process::Command;

use crate::{DOCUMENTS, read, root};

/// The tests that run the blocks of each document: file and name. Guides are read by `Guide`, which refuses blocks
/// that are neither files nor sessions, and whose `finish` fails if one of them is left.
const RUN_BY: [(&str, &[(&str, &str)]); 14] = [
    (
        "README.md",
        &[
            ("tests/cluster/guides.rs", "the_readme_does_what_it_shows"),
            ("tests/packages/readme.rs", "a_host_is_installed_with_the_commands_of_the_readme"),
        ],
    ),
    (
        ".github/CONTRIBUTING.md",
        &[
            ("tests/packaging.rs", "every_command_in_the_documents_can_be_typed"),
            ("tests/packaging/blocks.rs", "make_knows_how_to_do_what_contributing_shows"),
        ],
    ),
    (
        "packaging/contiv.md",
        &[(
            "tests/policy_agent/tenant_guide.rs",
            "the_guide_for_those_who_come_from_contiv_does_what_it_shows",
        )],
    ),
    (
        "packaging/migration.md",
        &[
            ("tests/cluster/migration.rs", "hosts_of_flannel_keep_their_subnets_and_pods"),
            ("tests/cluster/migration.rs", "a_bridge_with_host_local_is_taken_over_with_its_pods"),
            ("tests/kubernetes/moved.rs", "pods_of_kindnet_are_started_again_on_humanz"),
            ("tests/kubernetes/moved.rs", "pods_of_calico_are_started_again_on_humanz"),
        ],
    ),
    (
        "packaging/operations.md",
        &[
            ("tests/cluster/guides.rs", "the_guide_of_operation_does_what_it_shows"),
            (
                "tests/encryption/guide.rs",
                "the_guides_way_to_encryption_and_to_a_new_key_is_walked",
            ),
            ("tests/kubernetes/chart.rs", "the_guide_to_helm_does_what_it_shows"),
            (
                "tests/agent/scraped.rs",
                "a_prometheus_elsewhere_scrapes_as_the_guide_shows_and_a_stranger_gets_nothing",
            ),
            ("tests/packages/life.rs", "an_upgrade_and_a_downgrade_disturb_no_pod_and_fail_no_add"),
        ],
    ),
    (
        "packaging/policy.md",
        &[("tests/policy_agent/guide.rs", "the_guide_of_policies_does_what_it_shows")],
    ),
    (
        "packaging/tenants.md",
        &[
            ("tests/policy_agent/tenant_guide.rs", "the_guide_of_tenants_does_what_it_shows"),
            ("tests/kubernetes/objects.rs", "the_guide_to_custom_resources_does_what_it_shows"),
            (
                "tests/kubernetes/controller.rs",
                "the_guide_to_networks_of_the_api_does_what_it_shows",
            ),
        ],
    ),
    (
        "packaging/humanz-agent.8",
        &[("tests/command/manual.rs", "the_examples_of_the_manual_are_run")],
    ),
    (
        "packaging/humanz-agent-cluster.8",
        &[("tests/command/manual.rs", "every_subcommand_has_an_example_in_its_page")],
    ),
    (
        "packaging/humanz-agent-host.8",
        &[("tests/command/manual.rs", "every_subcommand_has_an_example_in_its_page")],
    ),
    (
        "packaging/humanz-agent-paths.8",
        &[("tests/command/manual.rs", "every_subcommand_has_an_example_in_its_page")],
    ),
    (
        "packaging/humanz-agent-policy.8",
        &[("tests/command/manual.rs", "every_subcommand_has_an_example_in_its_page")],
    ),
    (
        "packaging/humanz-agent-setup.8",
        &[("tests/command/manual.rs", "every_subcommand_has_an_example_in_its_page")],
    ),
    (
        "packaging/humanz.5",
        &[("tests/plugin/manual.rs", "the_examples_of_the_manual_are_networks")],
    ),
];

#[test]
fn every_block_of_the_documents_is_run_by_a_test() {
    for document in DOCUMENTS {
        let by = RUN_BY.iter().find(|(name, _)| *name == document).map_or(&[][..], |(_, by)| by);
        assert_eq!(has_blocks(document), !by.is_empty(), "{document}: {by:?}");
        for (file, test) in by {
            let text = read(file);
            assert!(text.contains(&format!("#[test]\nfn {test}()")), "{file}: no {test}");
            let name = document.rsplit('/').next().unwrap();
            assert!(text.contains(name), "{file} does not read {document}");
        }
        // A section that no test follows is noticed there.
        let finishes = |(file, _): &(&str, &str)| read(file).contains("guide.finish()");
        let is_guide = document.ends_with(".md") && document != ".github/CONTRIBUTING.md";
        assert!(by.is_empty() || !is_guide || by.iter().any(finishes), "{document}");
    }
}

/// Fenced or indented lines, or examples of a manual page.
fn has_blocks(document: &str) -> bool {
    let text = read(document);
    match document.ends_with(".md") {
        true => text.lines().any(|line| line.starts_with("```") || line.starts_with("    ")),
        false => text.lines().any(|line| matches!(line, ".EX" | ".nf")),
    }
}

/// Without running it: that takes hours.
#[test]
fn make_knows_how_to_do_what_contributing_shows() {
    let text = read(".github/CONTRIBUTING.md");
    let lines = text.lines().filter_map(|line| line.strip_prefix("    make "));
    let lines: Vec<&str> = lines.filter_map(|line| line.split("  #").next()).collect();
    assert!(lines.len() > 4, "{lines:?}");
    for line in lines {
        let made = Command::new("sh")
            .args(["-c", &format!("make --dry-run --no-print-directory {line}")])
            .current_dir(root())
            .output()
            .unwrap();
        assert!(made.status.success(), "{line}: {}", String::from_utf8_lossy(&made.stderr));
    }
}
