"""The broker's HTTP port by real requests: bytes as they are in the files, to nobody without the token."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from audited_group import TOKEN, HttpBroker, audited_group
from command_line import run
from raw_wire import SEND, Wire, json_frame, producing, send_ext

from tandemmq.chaos.processes import wait_until
from tandemmq.cluster.httplog import ODD_LOG_S
from tandemmq.cluster.remoting.selfsigned import self_signed_pem

pytestmark = pytest.mark.system

SEGMENT_BYTES = 1 << 20
FIRST, SECOND = "/commitlog/" + "0" * 20, f"/commitlog/{SEGMENT_BYTES:020d}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpBroker]:
    """A broker with two and a half segments."""
    with audited_group(tmp_path_factory.mktemp("http")) as group:
        group.fill(1_500)
        group.wait_caught_up()
        wait_until(lambda: group.master.json("/healthz")["flushed"], 20, "a flush, twice a second")
        yield group.master


def log_file(broker: HttpBroker, start: int) -> bytes:
    return (broker.store / "commitlog" / f"{start:020d}").read_bytes()


# -- who may read ------------------------------------------------------------------------------------


def test_liveness_is_for_everybody_and_the_rest_for_the_token(broker: HttpBroker) -> None:
    status, _, body = broker.get("/healthz", token=None)
    assert (status, body) == (200, b'{"status": "ok"}')
    told = broker.json("/healthz")
    assert (told["cluster"], told["group"], told["brokerId"]) == ("TestCluster", "broker-a", 0)
    assert (told["role"], told["epoch"], told["start"]) == ("ASYNC_MASTER", 0, 0)
    assert 0 < told["flushed"] <= told["end"] == told["confirmed"]


@pytest.mark.parametrize(
    "path", ["/commitlog", FIRST, "/consumequeue", "/index", "/epochs", "/config/x", "/nothing"]
)
@pytest.mark.parametrize("token", [None, "", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "\xff" * 22])
def test_nothing_is_told_without_the_right_token(
    broker: HttpBroker, path: str, token: str | None
) -> None:
    status, headers, body = broker.get(path, token=token)
    assert status == 401
    assert headers["WWW-Authenticate"].startswith("Bearer")
    assert body == b"show the broker's httpToken: Authorization: Bearer TOKEN\n"


def test_wrong_token_at_healthz_is_no_answer_either(broker: HttpBroker) -> None:
    assert broker.get("/healthz", token="wrong-token-of-that-length")[0] == 401


def test_pages_that_point_their_own_name_at_us_get_nothing(broker: HttpBroker) -> None:
    assert broker.get("/healthz", token=None, Host="evil.example")[0] == 403
    for host in ("localhost", f"127.0.0.1:{broker.http_port}", "[::1]:80", "10.1.2.3"):
        assert broker.get("/healthz", token=None, Host=host)[0] == 200, host


# -- what is read ------------------------------------------------------------------------------------


def test_segment_is_handed_out_as_it_is_in_its_file(broker: HttpBroker) -> None:
    status, headers, body = broker.get(FIRST)
    assert status == 200
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["Accept-Ranges"] == "bytes"
    assert body == log_file(broker, 0)


def test_ranges_are_the_bytes_that_they_name(broker: HttpBroker) -> None:
    whole = log_file(broker, SEGMENT_BYTES)
    for header, expected in {
        "bytes=0-0": whole[:1],
        "bytes=1000-70999": whole[1000:71_000],
        f"bytes={SEGMENT_BYTES - 10}-{SEGMENT_BYTES + 10}": whole[-10:],
        "bytes=-5": whole[-5:],
    }.items():
        status, headers, body = broker.get(SECOND, Range=header)
        assert (status, body) == (206, expected), header
        assert re.fullmatch(rf"bytes \d+-\d+/{SEGMENT_BYTES}", headers["Content-Range"])


@pytest.mark.parametrize("header", [f"bytes={SEGMENT_BYTES}-", "bytes=9-3", "bytes=0-1,5-6", "b"])
def test_range_that_cannot_be_answered_is_416_with_the_length(
    broker: HttpBroker, header: str
) -> None:
    status, headers, _ = broker.get(FIRST, Range=header)
    assert status == 416
    assert headers["Content-Range"] == f"bytes */{SEGMENT_BYTES}"


def test_head_tells_the_length_alone(broker: HttpBroker) -> None:
    status, headers, body = broker.get(FIRST, method="HEAD")
    assert (status, headers["Content-Length"], body) == (200, str(SEGMENT_BYTES), b"")


def test_last_segment_ends_where_the_log_does(broker: HttpBroker) -> None:
    told = broker.json("/commitlog")
    start = told["confirmed"] - told["confirmed"] % SEGMENT_BYTES
    assert [name for name, _ in told["files"]] == list(range(0, start + 1, SEGMENT_BYTES))
    assert (
        broker.get(f"/commitlog/{start:020d}")[2]
        == log_file(broker, start)[: told["confirmed"] - start]
    )


@pytest.mark.parametrize(
    "path",
    ["/commitlog/" + "0" * 19, "/commitlog/" + "0" * 19 + "1", f"/commitlog/{1 << 40:020d}",
     "/commitlog/..%2f..%2f..%2fetc%2fpasswd", "/commitlog/%2e%2e", "/commitlog/../lock", "/lock",
     "/commitlog/" + "0" * 19 + "%D9%A3",
     "/consumequeue/Orders/0/../../../lock", "/consumequeue/Orders/0/..%2f..%2f..%2flock",
     "/consumequeue/..%2f..%2fcommitlog/0/" + "0" * 20, "/consumequeue/%2e%2e/commitlog/" + "0" * 20,
     "/consumequeue/Orders/0x0/" + "0" * 20, "/consumequeue/Orders/0", "/consumequeue/Or%00ders/0/1",
     "/index/..%2flock", "/index/x", "/config/access.json", "/config/..%2flock", "/checkpoint",
     "/http.token"],
)  # fmt: skip
def test_other_names_are_no_files(broker: HttpBroker, path: str) -> None:
    status, _, body = broker.get(path)
    assert status in (403, 404), body
    assert b"root:" not in body and TOKEN.encode() not in body


def test_other_methods_and_bounds_are_refused(broker: HttpBroker) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert broker.get(FIRST, method=method)[0] == 405
    assert broker.get(FIRST + "?upto=tomorrow")[0] == 400
    assert broker.get("/" + "x" * 9_000)[0] == 400


def test_queues_index_and_progress_are_what_the_store_holds(broker: HttpBroker) -> None:
    told = broker.json("/consumequeue")
    assert told["strays"] == []
    assert {queue["topic"] for queue in told["queues"]} >= {"Orders", "Payments", "Returns"}
    for queue in told["queues"]:
        directory = broker.store / "consumequeue" / queue["topic"] / str(queue["queueId"])
        files = {path.name: path.stat().st_size for path in directory.iterdir()}
        assert {f"{start:020d}": size for start, size in queue["files"]} == files
        for name in files:
            path = f"/consumequeue/{queue['topic']}/{queue['queueId']}/{name}"
            assert broker.get(path)[2] == (directory / name).read_bytes()
    index = broker.json("/index")
    assert index["slots"] == 500 and index["files"]
    for name, _ in index["files"]:
        assert broker.get(f"/index/{name}")[2] == (broker.store / "index" / name).read_bytes()
    assert broker.json("/epochs")["epochs"] == []
    assert broker.get("/config/delayOffset.json")[0] in (200, 404)


def test_requests_on_one_connection_follow_each_other(broker: HttpBroker) -> None:
    """What went past the HTTP library by sendfile must not upset what it sends after."""
    connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=20)
    whole = log_file(broker, 0)
    try:
        for number in range(50):
            headers = {
                "Authorization": f"Bearer {TOKEN}",
                "Range": f"bytes={number}-{number + 99_999}",
            }
            connection.request("GET", FIRST if number % 3 else "/epochs", headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            if number % 3:
                assert (answer.status, body) == (206, whole[number : number + 100_000])
            else:
                assert answer.status == 200
    finally:
        connection.close()


# -- what is not confirmed ---------------------------------------------------------------------------


def test_unconfirmed_bytes_are_handed_out_only_when_asked_for(tmp_path: Path) -> None:
    with audited_group(tmp_path, brokerRole="SYNC_MASTER", slaveTimeout=60_000) as group:
        group.wait_caught_up()
        group.fill(5)
        master = group.master
        os.kill(group.slave.pid, signal.SIGSTOP)
        try:
            with Wire(master.address) as wire:
                wire.send(json_frame(SEND, send_ext("Orders"), b"not confirmed", opaque=1))
                wait_until(lambda: ends(master)[0] < ends(master)[1], 20, "it is written")
                confirmed, end = ends(master)
                short, whole = master.get(FIRST), master.get(FIRST + "?upto=end")
                assert (len(short[2]), len(whole[2])) == (confirmed, end)
                assert whole[2] == log_file(master, 0)[:end]
                assert b"not confirmed" in whole[2] and b"not confirmed" not in short[2]
                assert master.get(FIRST, Range=f"bytes={confirmed}-")[0] == 416
        finally:
            os.kill(group.slave.pid, signal.SIGCONT)


def ends(broker: HttpBroker) -> tuple[int, int]:
    told = broker.json("/healthz")
    return told["confirmed"], told["end"]


# -- producers come first ----------------------------------------------------------------------------


def test_reader_that_takes_nothing_holds_up_nobody(tmp_path: Path) -> None:
    with audited_group(tmp_path, httpReadersMax=1, httpBytesPerSecondMax=0) as group:
        group.fill(800)
        group.wait_caught_up()
        broker = group.master
        with socket.create_connection(("127.0.0.1", broker.http_port)) as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.sendall(
                f"GET {FIRST} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
                "".encode()
            )
            assert lazy.recv(15) == b"HTTP/1.1 200 OK"
            begin = time.monotonic()
            assert broker.get("/healthz", token=None)[0] == 200
            assert broker.json("/healthz")["group"] == "broker-a"
            with producing(broker.address, "Load") as load:
                wait_until(lambda: len(load.acknowledged) > 200, 20, "200 sends")
            assert load.problem is None
            assert time.monotonic() - begin < 20
            assert broker.stop() == 0  # within 5 s, reader or not
        broker.start()


def test_rate_is_kept_whoever_reads(tmp_path: Path) -> None:
    with audited_group(tmp_path, httpBytesPerSecondMax=1_000_000) as group:
        group.fill(1_500)
        begin = time.monotonic()
        threads = [
            threading.Thread(target=group.master.get, args=(path,)) for path in (FIRST, SECOND)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - begin >= 2 * SEGMENT_BYTES / 1_000_000 - 1.1


def test_too_many_requests_are_sent_away_and_come_back(tmp_path: Path) -> None:
    """Sixty-four wait; the others hear 503 and when to ask again."""
    with audited_group(tmp_path, httpReadersMax=1, httpBytesPerSecondMax=100_000) as group:
        group.fill(800)
        statuses: list[int] = []

        def ask() -> None:
            statuses.append(group.master.get(FIRST, Range="bytes=0-99")[0])

        hold = threading.Thread(
            target=group.master.get, args=(FIRST,), kwargs={"Range": "bytes=0-299999"}
        )
        hold.start()
        threads = [threading.Thread(target=ask) for _ in range(90)]
        for thread in threads:
            thread.start()
        for thread in [hold, *threads]:
            thread.join()
        assert set(statuses) == {206, 503}
        assert group.master.get(FIRST, Range="bytes=0-99")[0] == 206


def test_reader_that_goes_away_leaves_nothing_open(broker: HttpBroker) -> None:
    def files() -> int:
        return len(os.listdir(f"/proc/{broker.pid}/fd"))

    before = files()
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", broker.http_port)) as gone:
            gone.sendall(
                f"GET {FIRST} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
                "".encode()
            )
            gone.recv(100)
    wait_until(lambda: files() <= before + 2, 10, "descriptors are closed")


# -- encrypted ---------------------------------------------------------------------------------------


def test_enforced_encryption_holds_for_the_http_port_too(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    for path, pem in zip((key, certificate), self_signed_pem(), strict=True):
        path.write_bytes(pem)
    settings = {
        "tls.server.mode": "enforcing", "tls.server.keyPath": key, "tls.server.certPath": certificate,
    }  # fmt: skip
    trusting = ssl.create_default_context(cafile=str(certificate))
    with HttpBroker(tmp_path, "", settings=settings) as broker:
        broker.launch()
        broker.wait_ready(lambda: encrypted_health(broker, trusting), broker.READY_S)
        with socket.create_connection(("127.0.0.1", broker.http_port), timeout=5) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert not plain.recv(100).startswith(b"HTTP/1.1 200")
        url = f"https://127.0.0.1:{broker.http_port}"
        words = ("audit", "digest", url, "--token-file", broker.token_file)
        out = ("--out", tmp_path / "digest.parquet")
        done = run(*words, "--ca", certificate, *out)
        assert done.code == 0, done.err
        distrusted = run(*words, *out)
        assert distrusted.code == 3
        assert "certificate verify failed" in distrusted.err
        assert len(distrusted.err.splitlines()) == 1


def encrypted_health(broker: HttpBroker, trusting: ssl.SSLContext) -> bool:
    connection = http.client.HTTPSConnection("127.0.0.1", broker.http_port, context=trusting)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


MALFORMED = [
    b"GET / HTTP/1.1\r\nHost: x\r\nbad header of %s\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"%s" * 1_000 + b"\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %s\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%s\r\n",
    b"GET /" + b"%s" * 2_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/9.%s\r\n\r\n",
    b"\x16\x03\x01%s",
]


def test_malformed_requests_leave_one_line_and_not_what_they_said(broker: HttpBroker) -> None:
    before = len(broker.output())
    content = b"what-a-stranger-said"

    def a_line_came() -> bool:
        for form in MALFORMED * 20:
            with (
                socket.create_connection(("127.0.0.1", broker.http_port), timeout=5) as sock,
                suppress(ConnectionError),  # refused before all of it was read
            ):
                sock.sendall(form.replace(b"%s", content))
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(65_536):
                    pass
        return "malformed HTTP request refused" in broker.output()[before:]

    # Requests of the tests before may have used up the line of these ten seconds.
    wait_until(a_line_came, ODD_LOG_S + 5, "a line about them")
    assert broker.get("/healthz")[0] == 200
    said = broker.output()[before:]
    assert "what-a-stranger-said" not in said and "Traceback" not in said
    assert said.count("malformed HTTP request refused") <= 3
    assert len(said) < 2_000, said
