# The commands of README.md and of the guide, and what they need.

.PHONY: test demo setup image

# All that CI runs: format, generated files, dependencies, words, clippy for both targets, tests, fuzz targets.
test:
	cargo xtask check

# From a fresh clone to Windows nodes: control plane, hosts, operator, a pool. ONCE=1 ends when every node is Ready.
demo:
	cargo xtask demo $(if $(ONCE),--once)

# The operator's images in target/image, with the payload of what can be built and of what is in the folder PROGRAMS.
image:
	cargo xtask payload --out target/payload $(if $(PROGRAMS),--from $(PROGRAMS))
	cargo xtask image --payload target/payload

# Installs what the test bed needs on Debian, as root.
setup:
	cargo xtask setup
