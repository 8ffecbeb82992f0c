# humanz: `make help` says what there is.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
# The tests run the file that ships, not a build of their own.
AGENT = $(CURDIR)/dist/humanz-agent
# Unlike systemd, NetworkManager reads nothing below /usr/local.
NETWORKMANAGER = /usr/lib/NetworkManager/conf.d

.DEFAULT_GOAL := build
SOAK ?= 3600
# arm64: what is built is for that processor, and lies below dist/arm64. Empty: for this machine's. Not from the
# environment, where builders of kernels have a variable of this name.
ARCH =
DIST = dist$(addprefix /,$(ARCH))
# For fuzz: seconds for each kind of bytes, and which kinds.
TIME ?= 600
TARGETS ?= $(notdir $(wildcard tests/fuzz/corpus/*))

.PHONY: build demo test test-kernels test-arm64 reproducible fuzz soak bench lint lint-rest count install packages image clean help deps

build: ## the static executable: dist/humanz-agent; ARCH=arm64 cross-builds dist/arm64/humanz-agent, also for packages and image
	@packaging/deps $(or $(ARCH),build)
	packaging/build $(ARCH)

demo: ## three hosts, etcd and pods in namespaces of this machine (as root)
	@echo "demo: 1 of 4: packages that are missing"
	@packaging/deps demo
	@echo "demo: 2 of 4: the executable, not optimised for size (the first time: two to three minutes)"
	packaging/build demo
	@echo "demo: 3 of 4: the demo"
	$(CARGO) build --locked --package humanz-demo
	@echo "demo: 4 of 4: three hosts"
	HUMANZ_BIN=$(CURDIR)/dist/demo/humanz-agent $(CARGO) run --quiet --locked --package humanz-demo

# Most tests wait, for etcd or for the kernel: tests/whole runs two targets at a time, with more tests at once than
# there are processors. It makes packages, image and target/debian13 first, and compiles the tests meanwhile.
# SCHEDULES: of the simulator of leases, which tests/whole runs beside them; BESIDE: a command as well;
# CLIPPY=1: what clippy warns of ends it, without a `cargo clippy` that compiles all of it once more.
test: ## every test (as root); SKIP_RUNTIMES=1 leaves out containerd and podman, SKIP_BROWSER=1 Chromium
	@packaging/deps test
	@test "$(SKIP_BROWSER)" = 1 || packaging/deps browser || \
		echo "WARNING: no chromium: the tests of the page will fail; make test SKIP_BROWSER=1 leaves them out" >&2
	HUMANZ_BIN=$(AGENT) SKIP_RUNTIMES=$(SKIP_RUNTIMES) SKIP_BROWSER=$(SKIP_BROWSER) CLIPPY=$(CLIPPY) \
		SCHEDULES=5000 RUST_TEST_THREADS=$$(($$(nproc) + 1)) \
		tests/whole $(CARGO) $(BESIDE)

# Tests of packages and runtimes have a machine of it.
target/debian13: tests/debian13
	@packaging/deps test
	tests/debian13 $@

# VM_LAB: a program that runs a command under another kernel; CONTRIBUTING says what it must offer.
VM_LAB ?= ../shared/lab/vm_lab.py
KERNELS ?= 5.10 6.1 6.12
# Given to make, it is no variable of the program that it calls.
unexport VM_LAB

test-kernels: build ## the kernel-near tests under other kernels (as root, hours); KERNELS="5.10 6.1" SUITES=plugin FILTER=del
	@packaging/deps kernels
	HUMANZ_BIN=$(AGENT) SUITES="$(SUITES)" FILTER="$(FILTER)" tests/kernels $(VM_LAB) $(KERNELS)

# In a user's process, by qemu: what needs a kernel of that processor is not tried. Nor is the test that starts its own
# executable: the kernel would have to know the emulator (binfmt_misc).
test-arm64: ## arm64: executable, packages, image and unit tests, by an emulated processor (a quarter of an hour beside build)
	@packaging/deps emulator
	$(MAKE) --no-print-directory packages image ARCH=arm64
	$(CARGO) test --locked --test arm64 -- --show-output
	packaging/arm64 $(CARGO) test --locked --lib -- --skip panic::tests::a_panic_in_any_thread

reproducible: build ## the executable, built a second time elsewhere and compared byte by byte (as long as a build from nothing)
	tests/reproducible $(AGENT)

soak: build ## an hour of everything that can break, then a report of leaks, then the flood at denied pods, tenants on 50 hosts and the simulator (as root); SOAK=300 seconds
	@packaging/deps test
	HUMANZ_BIN=$(AGENT) SOAK=$(SOAK) $(CARGO) run --quiet --locked --example soak
	HUMANZ_BIN=$(AGENT) POLICY_LEAK=whole $(CARGO) test --locked --test policy_agent leak:: -- --show-output
	HUMANZ_BIN=$(AGENT) TENANT_HOSTS=50 PATIENCE=3 $(CARGO) test --locked --test policy_agent many_hosts:: -- --show-output
	SCHEDULES=100000 $(CARGO) test --locked --test simulator -- --show-output

# What is found stays in target/fuzz; what must not come back is copied into tests/fuzz/corpus, which
# `make test` replays. Without a sanitizer: humanz has no unsafe code, and panics are what is looked for.
fuzz: ## every parser of foreign bytes, with cargo-fuzz and a nightly toolchain; TIME=600 seconds each
	@$(CARGO) +nightly fuzz --version >/dev/null || { echo "missing: rustup toolchain install nightly; cargo install cargo-fuzz" >&2; exit 1; }
	for target in $(TARGETS); do \
		mkdir -p target/fuzz/$$target && \
		$(CARGO) +nightly fuzz run --fuzz-dir tests/fuzz --sanitizer none $$target \
			target/fuzz/$$target tests/fuzz/corpus/$$target -- \
			-max_total_time=$(TIME) -timeout=20 -max_len=6000 || exit; \
	done

# What is measured is the file that ships; the bench itself needs no optimisation.
bench: build ## humanz, the reference plugins and the kernel's own price, in one run (as root); PART=add,agent-100 runs a part
	@packaging/deps test
	HUMANZ_BIN=$(AGENT) PART=$(PART) $(CARGO) bench --locked --profile dev --bench bench

lint: lint-rest ## format, clippy, licences
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) test --locked --quiet --test licences

# What `make test CLIPPY=1` leaves.
lint-rest:
	@packaging/deps test
	$(CARGO) fmt --all --check
	$(CARGO) fetch --quiet --locked # for the licences of all platforms
	if $(CARGO) deny --version >/dev/null 2>&1; then \
		$(CARGO) deny --offline check licenses bans sources; fi

count: ## lines of code, files and names of types in src
	@tests/count

install: ## into DESTDIR and PREFIX; run `make build` first
	@test -x $(DIST)/humanz-agent || { echo "$(DIST)/humanz-agent is missing: run make build" >&2; exit 1; }
	install -D -m 0755 $(DIST)/humanz-agent $(DESTDIR)$(PREFIX)/sbin/humanz-agent
	install -d $(DESTDIR)$(PREFIX)/libexec/netavark
	ln -sfn ../../sbin/humanz-agent $(DESTDIR)$(PREFIX)/libexec/netavark/humanz
	install -D -m 0644 -t $(DESTDIR)$(PREFIX)/share/man/man8 packaging/humanz-agent.8 \
		packaging/humanz-agent-cluster.8 packaging/humanz-agent-host.8 packaging/humanz-agent-paths.8 \
		packaging/humanz-agent-policy.8 packaging/humanz-agent-setup.8
	install -D -m 0644 packaging/humanz.5 $(DESTDIR)$(PREFIX)/share/man/man5/humanz.5
	install -D -m 0644 packaging/completion/bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/humanz-agent
	install -D -m 0644 packaging/completion/zsh $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_humanz-agent
	install -D -m 0644 packaging/completion/fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/humanz-agent.fish
	install -D -m 0644 packaging/copyright $(DESTDIR)$(PREFIX)/share/doc/humanz/copyright
	install -D -m 0644 -t $(DESTDIR)$(PREFIX)/share/doc/humanz packaging/architecture.md \
		packaging/coexistence.md packaging/contiv.md packaging/migration.md packaging/operations.md \
		packaging/policy.md packaging/tenants.md packaging/trust.md
	install -D -m 0644 -t $(DESTDIR)$(PREFIX)/share/doc/humanz/doc packaging/doc/overview.svg packaging/doc/page.png
	install -D -m 0644 LICENSE $(DESTDIR)$(PREFIX)/share/licenses/humanz/LICENSE
	install -D -m 0644 packaging/logrotate $(DESTDIR)/etc/logrotate.d/humanz
	install -D -m 0644 packaging/monitoring/alerts.yml $(DESTDIR)$(PREFIX)/share/humanz/alerts.yml
	install -D -m 0644 packaging/monitoring/prometheusrule.yaml $(DESTDIR)$(PREFIX)/share/humanz/prometheusrule.yaml
	install -D -m 0644 packaging/monitoring/podmonitor.yaml $(DESTDIR)$(PREFIX)/share/humanz/podmonitor.yaml
	install -D -m 0644 packaging/monitoring/haproxy.cfg $(DESTDIR)$(PREFIX)/share/humanz/haproxy.cfg
	install -D -m 0644 packaging/monitoring/proxy.yaml $(DESTDIR)$(PREFIX)/share/humanz/proxy.yaml
	install -D -m 0644 packaging/monitoring/dashboard.json $(DESTDIR)$(PREFIX)/share/humanz/dashboard.json
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	set -e; for unit in humanz-agent.service humanz-connectivity.socket humanz-connectivity@.service; do \
		sed 's|/usr/sbin/|$(PREFIX)/sbin/|' packaging/$$unit > $(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit; \
		chmod 0644 $(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit; done
	install -D -m 0644 packaging/drop-ins/networkd.conf \
		$(DESTDIR)$(PREFIX)/lib/systemd/networkd.conf.d/50-humanz.conf
	install -D -m 0644 packaging/drop-ins/humanz.network \
		$(DESTDIR)$(PREFIX)/lib/systemd/network/00-humanz.network
	install -D -m 0644 packaging/drop-ins/humanz.link \
		$(DESTDIR)$(PREFIX)/lib/systemd/network/00-humanz.link
	install -D -m 0644 packaging/drop-ins/NetworkManager.conf \
		$(DESTDIR)$(NETWORKMANAGER)/50-humanz.conf
	test -e $(DESTDIR)/etc/humanz/agent.env || \
		install -D -m 0644 packaging/agent.env $(DESTDIR)/etc/humanz/agent.env

packages: build ## dist/*.deb and dist/*.rpm of what `make install` installs
	@packaging/deps packages
	packaging/package $(ARCH)

image: build ## dist/*.oci.tar, the executable as an image for packaging/daemonset.yaml, and dist/*.cdx.json, what is in it
	@packaging/deps image
	$(if $(ARCH),$(MAKE) --no-print-directory image ARCH=)
	packaging/image $(ARCH)
	packaging/sbom $(DIST)/humanz-agent $(DIST)/humanz.cdx.json $(ARCH)

clean: ## removes what was built
	rm -rf dist
	$(CARGO) clean

deps: ## installs the Debian packages that building and testing need
	packaging/deps test
	packaging/deps browser

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14
