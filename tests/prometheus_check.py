"""make prometheus: a real Prometheus scrapes a run, and answers everything that contrib/grafana.json asks; promtool reads the text."""

import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

import lab

DEADLINE_SECONDS = 60
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def fetch(url: str) -> bytes:
    with OPENER.open(url, timeout=10) as answer:
        return answer.read()


def expressions(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["expr"]] if "expr" in value else []
        return own + [e for field in value.values() for e in expressions(field)]
    return [e for item in value for e in expressions(item)] if isinstance(value, list) else []


def answers(prometheus: str, query: str) -> int:
    """How many series a query finds; an error ends this."""
    found = json.loads(fetch(f"{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": query})))
    if found["status"] != "success":
        sys.exit(f"{query}: {found}")
    return len(found["data"]["result"])


def wait_for(what: str, is_so) -> None:
    until = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < until:
        try:
            if is_so():
                return
        except OSError:
            pass
        time.sleep(0.2)
    sys.exit(f"not within {DEADLINE_SECONDS} s: {what}")


def check(metrics: str, prometheus: str) -> None:
    wait_for("metrics", lambda: fetch(f"http://{metrics}/metrics"))
    text = fetch(f"http://{metrics}/metrics")
    # promtool reads the older text format, in which the name of a counter is that of its sample, and nothing is said of units.
    text_of_infos = re.sub(rb"(?m)^(# TYPE \S+) info", rb"\1 gauge", text)
    older = re.sub(rb"(?m)^# (HELP|TYPE) (\S+)", rename(text), text_of_infos)
    older = b"\n".join(line for line in older.splitlines() if not line.startswith((b"# UNIT", b"# EOF"))) + b"\n"
    found = subprocess.run(["promtool", "check", "metrics"], input=older, capture_output=True)
    if found.returncode != 0:
        sys.exit(f"promtool: {found.stdout.decode()}{found.stderr.decode()}")
    print("promtool: nothing to say")
    wait_for("a target that is up", lambda: answers(prometheus, "up == 1"))
    wait_for("a rate", lambda: answers(prometheus, "rate(lowtide_faults_total[5s])"))
    dashboard = json.loads((lab.ROOT / "contrib/grafana.json").read_text())
    asked = expressions(dashboard)
    for expression in asked:
        query = expression.replace("$instance", ".*").replace("$__rate_interval", "5s")
        found = answers(prometheus, query)
        print(f"  {found:>3} series  {query}")
        if not found:
            sys.exit("nothing was found")
    print(f"{len(asked)} expressions of the dashboard answered")


def rename(text: bytes):
    counters = set(re.findall(rb"(?m)^# TYPE (\S+) counter", text))
    infos = set(re.findall(rb"(?m)^# TYPE (\S+) info", text))

    def new(match: re.Match) -> bytes:
        suffix = b"_total" if match[2] in counters else b"_info" if match[2] in infos else b""
        return b"# " + match[1] + b" " + match[2] + suffix

    return new


def main() -> int:
    lab.require_lowtide()
    metrics, server = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        directory = Path(name)
        (directory / "prometheus.yml").write_text(
            "global: {scrape_interval: 500ms, scrape_timeout: 500ms}\n"
            f"scrape_configs: [{{job_name: lowtide, static_configs: [{{targets: ['{metrics}']}}]}}]\n"
        )
        run = subprocess.Popen(
            [lab.LOWTIDE, "run", "--quiet", "--ram", "96M", "--metrics", metrics]
            + ["--", lab.compiled("touches"), "192", "50000000", "random", "t"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        options = [f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"]
        log = (directory / "log").open("w")
        prometheus = subprocess.Popen(["prometheus", *options, f"--web.listen-address={server}"], stdout=log, stderr=log)
        try:
            check(metrics, f"http://{server}")
        finally:
            for child in (prometheus, run):
                child.terminate()
                child.wait()
    return 0


sys.exit(main())
