# The two commands of README.md, and what they need.

.PHONY: test demo setup

# All that CI runs: format, generated files, dependencies, words, clippy for both targets, tests, fuzz targets.
test:
	cargo xtask check

# From a fresh clone to Windows nodes: control plane, hosts, operator, a pool. ONCE=1 ends when every node is Ready.
demo:
	cargo xtask demo $(if $(ONCE),--once)

# Installs what the test bed needs on Debian, as root.
setup:
	cargo xtask setup
