# The commands of README.md and of the guide, and what they need.

.PHONY: test quick nightly demo setup image

# Runs all that CI runs for each change: format, spelling, links, generated files, dependencies, clippy for both targets, tests, fuzz targets.
test: setup
	cargo xtask check

# Runs the checks that take minutes: without an API server, Wine hosts and fuzzing.
quick: setup
	cargo xtask check --quick

# Runs the checks that take hours: long tests, programs of other projects, long fuzzing, the images of a release built twice. PART selects one part
# of those that `cargo xtask check --help` names.
nightly: setup
	cargo xtask check --nightly $(PART)

# From a fresh clone to Windows nodes: control plane, hosts, operator, a pool. ONCE=1 ends when every node of the first table is Ready.
demo:
	cargo xtask setup --demo
	cargo xtask demo $(if $(ONCE),--once)

# The operator's images in target/image, with what can be built for hosts and what is in the folder PROGRAMS: a payload for each minor version of
# Kubernetes that is supported, or for those in KUBERNETES alone, as 1.35 or 1.35,1.36. SIGN is a program that signs each .exe.
image: setup
	rm -rf target/payload
	cargo xtask payload --out target/payload --kubernetes $(or $(KUBERNETES),all) $(if $(PROGRAMS),--from $(PROGRAMS)) $(if $(SIGN),--sign $(SIGN))
	cargo xtask image $(if $(SIGN),--sign $(SIGN) )--payload target/payload

# Installs what a Debian machine lacks, as root. The other targets do so first.
setup:
	cargo xtask setup
