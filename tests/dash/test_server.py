"""The dashboard as a process: what it answers, to whom, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from recorded_runs import row, status, write_run

from tessera.dash.places import ServePlace, listen
from tessera.errors import TesseraError

TOKEN = "a token that is long enough"


def test_every_answer_forbids_scripts_and_loads_from_elsewhere(runs, dashboard):
    write_run(runs / "<b>a", status=status())
    served = dashboard(runs, "--port", 0)
    assert str(runs) in served.said
    name = quote("<b>a")
    for path in ("/api/runs", f"/api/run?name={name}", "/api/nothing", "/video", "/api/run?name=.."):
        code, headers, body = served.ask(path)
        assert code == (200 if path.startswith(("/api/runs", "/api/run?name=%3C")) else 404), path
        assert headers["content-type"] == "application/json"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert code == 200 or list(json.loads(body)) == ["error"]
    assert served.json(f"/api/run?name={name}")["header"]["update"] == 10
    assert served.json("/api/compare?names=x")["error"]
    assert served.json(f"/api/curves?run={name}&metric=learn/loss&by=update&points=x")["error"].startswith("points")
    curves = served.json(f"/api/curves?run={name}&metric=learn/loss&metric=train_return_mean&by=update&merge=1")
    assert [c["metric"] for c in curves["curves"]] == ["learn/loss", "train_return_mean"]
    assert served.json(f"/api/spans?name={name}") is None


@pytest.mark.parametrize("path", ["/static/..%2fapp.py", "/static/../app.py", "/static/%2e%2e/app.py", "/static/app.py",
                                  "/..%2f..%2fsecret.json", "//secret.json", "/static/%00"])  # fmt: skip
def test_no_path_leads_to_other_files(shared, path):
    assert shared.ask(path)[0] == 404


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One dashboard for many questions."""
    from conftest import Dashboard

    folder = tmp_path_factory.mktemp("runs")
    (folder / "a" / "videos").mkdir(parents=True)
    (folder / "a" / "metrics.jsonl").write_text("{}\n")
    (folder / "a" / "videos" / "update_1.mp4").write_bytes(bytes(range(100)))
    (folder / "a" / "videos" / "update_1.html").write_text("<script>1</script>")
    (folder / "a" / "trace.json").write_text("[]")
    served = Dashboard(folder, "--port", 0)
    yield served
    served.process.kill()
    served.process.communicate()


def test_only_names_of_this_machine_are_answered(shared):
    port = urlsplit(shared.address).port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", ""):
        assert shared.ask("/api/runs", Host=host)[0] in (400, 403), host
    for host in ("localhost", f"LOCALHOST:{port}", "127.0.0.1:9999", "[::1]:8642"):
        assert shared.ask("/api/runs", Host=host)[0] == 200, host


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_sent(shared, method):
    assert shared.ask("/api/runs", method)[0] == 405


def test_a_video_is_given_in_the_parts_that_a_player_asks_for(shared):
    path = "/video?name=a&file=update_1.mp4"
    code, headers, body = shared.ask(path)
    assert (code, headers["content-type"], headers["accept-ranges"]) == (200, "video/mp4", "bytes")
    assert body == bytes(range(100))
    for asked, begin, end in (("0-", 0, 100), ("10-19", 10, 20), ("90-500", 90, 100), ("-5", 95, 100)):
        code, headers, body = shared.ask(path, Range=f"bytes={asked}")
        assert (code, body) == (206, bytes(range(begin, end))), asked
        assert headers["content-range"] == f"bytes {begin}-{end - 1}/100"
    for asked in ("bytes=200-", "bytes=9-3", "bytes=-", "bytes=x-y", "lines=1-2", "bytes=0-1,3-4", "bytes=" + "9" * 50):
        assert shared.ask(path, Range=asked)[0] == 416, asked


def test_only_videos_and_traces_are_given_as_files(shared):
    for file in ("update_1.html", "..%2fmetrics.jsonl", "none.mp4", "", "%2e%2e"):
        assert shared.ask(f"/video?name=a&file={file}")[0] == 404, file
    code, headers, body = shared.ask("/api/trace?name=a")
    assert (code, body) == (200, b"[]")
    assert headers["content-disposition"].startswith("attachment")


def test_a_run_is_told_of_as_it_goes_on(runs, dashboard):
    folder = write_run(runs / "a", status=status())
    served = dashboard(runs, "--port", 0)
    events = served.events("/api/events?name=a&metric=learn/loss")
    kind, data = next(events)
    assert (kind, data["header"]["state"]) == ("run", "running")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row(11)) + "\n" + json.dumps(row(12))[:20])
        file.flush()
        assert next(events) == ("rows", [{"env_steps": 1408, "seconds": 5.5, "update": 11, "learn/loss": 1 / 11}])
        assert next(events)[1]["header"]["update"] == 11
        file.write(json.dumps(row(12))[20:] + "\n")
    assert next(events)[1][0]["update"] == 12
    assert next(events)[0] == "run"
    (folder / "live" / "marks.jsonl").write_text('{"kind": "death", "text": "actor 1 died"}\n')
    kind, (mark,) = next(events)
    assert (kind, mark["text"]) == ("marks", "actor 1 died")
    (folder / "videos").mkdir()
    (folder / "videos" / "update_5.gif").write_bytes(b"GIF")
    assert next(events) == ("videos", [{"file": "update_5.gif", "update": 5, "bytes": 3}])
    served.process.send_signal(signal.SIGINT)
    assert list(events) == []  # the connection is closed


def test_the_list_of_runs_is_told_again_when_one_changes(runs, dashboard):
    folder = write_run(runs / "a")
    events = dashboard(runs, "--port", 0).events("/api/events")
    assert next(events)[1]["runs"][0]["update"] == 10
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row(11)) + "\n")
    assert next(events)[1]["runs"][0]["update"] == 11


def test_an_event_stream_of_a_run_that_is_not_there_is_refused(shared):
    assert shared.ask("/api/events?name=nobody")[0] == 404


def test_an_idle_dashboard_uses_no_time(runs, dashboard):
    served = dashboard(runs, "--port", 0)
    served.json("/api/runs")
    before = switches(served.process.pid)
    time.sleep(1.5)
    assert switches(served.process.pid) - before <= 5  # ten a second and more if it looked around


def switches(process: int) -> int:
    """How often a process has gone to sleep or was put to sleep."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


def test_ctrl_c_ends_it_at_once_while_a_browser_listens(runs, dashboard):
    write_run(runs / "a")
    served = dashboard(runs, "--port", 0)
    events = served.events("/api/events?name=a")
    next(events)
    begun = time.monotonic()
    assert served.stop() == 0
    assert time.monotonic() - begun < 5
    assert served.process.stderr.read() == ""


def test_a_token_is_asked_for_once(runs, dashboard):
    write_run(runs / "a")
    served = dashboard(runs, "--port", 0, "--token", TOKEN)
    assert "token=a+token" in served.address
    assert served.ask("/api/runs")[0] == 403
    assert served.ask("/api/runs?token=wrong")[0] == 403
    code, headers, _ = served.ask(f"/?token={quote(TOKEN)}&x=1")
    assert (code, headers["location"]) == (303, "/?x=1")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    name = cookie.partition("=")[0]
    assert served.ask("/api/runs", Cookie=cookie.partition(";")[0])[0] == 200
    assert served.ask("/api/runs", Cookie=f"{name}=wrong")[0] == 403
    assert served.ask(f"//evil.example?token={quote(TOKEN)}")[1]["location"] == "/"


def refused(*arguments: str, **variables: str) -> str:
    """What `tessera dash` says when it refuses to start."""
    command = [sys.executable, "-m", "tessera", "dash", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **variables})
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def test_it_does_not_start_where_strangers_could_read(runs):
    said = refused(str(runs), "--host", "0.0.0.0")
    assert "--token" in said
    assert "other machines" in said
    assert "can be guessed" in refused(str(runs), "--host", "0.0.0.0", TESSERA_DASH_TOKEN="short")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", "127.0.0.1.nip.io", ""])
def test_no_address_but_loopback_goes_without_a_token(host):
    with pytest.raises(TesseraError, match="token"):
        listen(ServePlace(host))


def test_a_port_that_is_taken_is_named_or_passed_over(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TesseraError, match=f"--port {port} is taken"):
            listen(ServePlace(port=port))
        monkeypatch.setattr("tessera.dash.places.PORT", port)
        with listen(ServePlace()) as other:
            assert port < other.getsockname()[1] < port + 20


@pytest.mark.parametrize("port", [-1, 65536, 70000])
def test_a_port_that_there_is_not_is_refused(port):
    with pytest.raises(TesseraError, match=f"--port {port}: ports are from 1 to 65535"):
        listen(ServePlace(port=port))


def test_a_host_that_is_no_name_is_refused():
    with pytest.raises(TesseraError, match=r"--host a\.\.b is no name of a machine"):
        listen(ServePlace("a..b", token=TOKEN))


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    assert "is not there" in refused(str(tmp_path / "none"))
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(str(tmp_path / "file"))


def test_without_its_packages_it_says_what_to_install(runs, tmp_path):
    (tmp_path / "starlette.py").write_text("raise ModuleNotFoundError(name='starlette')")
    said = refused(str(runs), PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert "the dashboard needs starlette" in said
    assert "install" in said


def test_the_dashboard_does_not_import_jax():
    code = "import sys, tessera.dash.serve; print([m for m in ('jax', 'flax', 'gymnasium') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
