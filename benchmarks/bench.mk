# Included by the Makefile. The other servers have an environment of their own: what they need is not what headrace needs.
.PHONY: peers bench soak

peers: .venvs/peers/.installed ## the servers that headrace is measured against, into an environment of their own

.venvs/peers/.installed: benchmarks/peers/requirements.txt
	@test -x .venvs/peers/bin/python || $(PYTHON) -m venv .venvs/peers
	.venvs/peers/bin/python -m pip install -q -r benchmarks/peers/requirements.txt
	@touch $@

bench: install peers ## all benchmarks; one: `make bench NAME=lone`
	@tools/system_packages.sh wrk h2load taskset
	$(BIN)/python -m benchmarks $(NAME)

soak: install ## half an hour of mixed load under faults, every answer checked; MINUTES=N, SEED=N
	@tools/system_packages.sh faketime
	$(BIN)/python -m benchmarks soak --minutes $${MINUTES:-30} --seed $${SEED:-1} --plot .bench/soak.png --report .bench/soak.md
