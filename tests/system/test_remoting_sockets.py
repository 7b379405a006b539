"""Servers and channels over real sockets, on both loops, plain and encrypted."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from framekit import FrameSplitter

from tandemmq.cluster.broker.serving import channels_to_rivals
from tandemmq.cluster.broker.settings.config import BrokerConfig
from tandemmq.cluster.remoting import (
    ChannelPool,
    Command,
    ConnectFailed,
    Connection,
    ConnectionLimits,
    ConnectionLost,
    FrameLimits,
    Listen,
    RemotingServer,
    RequestTimedOut,
    TlsFiles,
    TlsMode,
    client_context,
    open_channel,
)
from tandemmq.cluster.remoting.encryption import Encryption
from tandemmq.cluster.remoting.selfsigned import self_signed_pem
from tandemmq.cluster.remoting.tls import TlsUnusable, server_context
from tandemmq.cluster.tlssettings import TlsConfig
from tandemmq.storage import StorageConfig

pytestmark = pytest.mark.system

Main = Callable[[], Coroutine[Any, Any, None]]
HOST = "127.0.0.1"


@pytest.fixture(params=["asyncio", "uvloop"])
def on_loop(request: pytest.FixtureRequest) -> Callable[[Main], None]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(main: Main) -> None:
        with asyncio.Runner(loop_factory=factory, debug=False) as runner:
            runner.run(main())

    return run


def echo(request: Command, _: Connection) -> Command:
    return request.reply(ext=request.ext, body=request.body)


async def never(request: Command, _: Connection) -> Command:
    await asyncio.get_running_loop().create_future()
    return request.reply()


def plain_exchange(port: int, data: bytes, *, expect_frames: int) -> tuple[list[Command], bool]:
    """Send bytes over a blocking socket; the answers, and whether the server closed after them."""
    splitter = FrameSplitter()
    answers: list[Command] = []
    with socket.create_connection((HOST, port), timeout=5) as client:
        client.sendall(data)
        client.settimeout(5 if expect_frames or not data else 0.3)
        while True:
            try:
                received = client.recv(65536)
            except TimeoutError:
                return answers, False
            except ConnectionResetError:
                return answers, True
            if not received:
                return answers, True
            answers += [Command.decode(frame) for frame in splitter.feed(received)]
            if len(answers) >= expect_frames:
                client.settimeout(0.3)


@pytest.mark.parametrize("mode", [TlsMode.DISABLED, TlsMode.PERMISSIVE, TlsMode.ENFORCING])
def test_requests_of_all_sizes_and_both_forms(on_loop: Any, mode: TlsMode) -> None:
    async def main() -> None:
        tls = None if mode is TlsMode.DISABLED else client_context(verify=False)
        async with RemotingServer(Listen(tls=mode), {10: echo}) as server:
            channel = await open_channel(HOST, server.port, tls=tls)
            assert channel.secured is (tls is not None)
            for size in (0, 1, 16 * 1024, 300_000, 9_000_000):
                for binary in (False, True):
                    body = bytes(size)
                    answer = await channel.request(
                        Command(10, {"size": str(size)}, body or None, binary=binary), 10_000
                    )
                    assert answer.ext == {"size": str(size)}
                    assert len(answer.body or b"") == size
                    assert answer.binary is binary
            futures = [
                channel.request_nowait(Command(10, {"n": str(n)}, b"x" * 1024), 10_000)
                for n in range(2000)
            ]
            assert [(await each).ext for each in futures] == [{"n": str(n)} for n in range(2000)]
            channel.close()

    on_loop(main)


def test_a_permissive_listener_serves_both_and_the_others_only_theirs(on_loop: Any) -> None:
    async def main() -> None:
        for mode, plain_works, tls_works in (
            (TlsMode.DISABLED, True, False),
            (TlsMode.PERMISSIVE, True, True),
            (TlsMode.ENFORCING, False, True),
        ):
            async with RemotingServer(Listen(tls=mode), {10: echo}) as server:
                data = Command(10, opaque=7).encode()
                answers, closed = await asyncio.to_thread(
                    plain_exchange, server.port, data, expect_frames=int(plain_works)
                )
                assert ([each.opaque for each in answers] == [7]) is plain_works, mode
                assert closed is not plain_works, mode
                context = client_context(verify=False)
                if tls_works:
                    channel = await open_channel(HOST, server.port, tls=context)
                    assert (await channel.request(Command(10), 5000)).code == 0
                    channel.close()
                else:
                    with pytest.raises(ConnectFailed):
                        await open_channel(HOST, server.port, tls=context)

    on_loop(main)


def test_certificates_are_verified_by_default_and_by_name(on_loop: Any, tmp_path: Path) -> None:
    key, certificate = self_signed_pem()
    (tmp_path / "key.pem").write_bytes(key)
    (tmp_path / "cert.pem").write_bytes(certificate)
    files = TlsFiles(key_path=str(tmp_path / "key.pem"), cert_path=str(tmp_path / "cert.pem"))

    async def main() -> None:
        listen = Listen(tls=TlsMode.ENFORCING, tls_files=files, tls_test_mode=False)
        async with RemotingServer(listen, {10: echo}) as server:
            trusting = client_context(ca_path=str(tmp_path / "cert.pem"))
            channel = await open_channel("localhost", server.port, tls=trusting)
            assert (await channel.request(Command(10), 5000)).code == 0
            channel.close()
            with pytest.raises(ConnectFailed, match="certificate"):
                await open_channel(HOST, server.port, tls=client_context())
            # a new certificate without a restart
            new_key, new_certificate = self_signed_pem()
            (tmp_path / "key.pem").write_bytes(new_key)
            (tmp_path / "cert.pem").write_bytes(new_certificate)
            await server.reload_tls()
            with pytest.raises(ConnectFailed, match="certificate"):
                await open_channel("localhost", server.port, tls=trusting)

    on_loop(main)


@pytest.mark.parametrize("mode", TlsMode)
def test_a_broker_asks_its_rivals_as_their_clients_have_to(on_loop: Any, mode: TlsMode) -> None:
    """In plain it would not be heard by those that speak TLS only, and both would stay."""

    async def main() -> None:
        async with RemotingServer(Listen(tls=mode), {10: echo}) as server:
            tls = TlsConfig(mode=mode)
            config = BrokerConfig(storage=StorageConfig(root="unused"), tls=tls)
            rivals = channels_to_rivals(config, Encryption(tls))
            answer = await rivals.request(f"{HOST}:{server.port}", Command(10), 5000)
            assert answer.code == 0
            await rivals.close()

    on_loop(main)


def test_old_tls_versions_are_refused(on_loop: Any) -> None:
    async def main() -> None:
        async with RemotingServer(Listen(tls=TlsMode.PERMISSIVE), {}) as server:
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            old.check_hostname = False
            old.verify_mode = ssl.CERT_NONE
            old.set_ciphers("ALL:@SECLEVEL=0")
            with pytest.warns(DeprecationWarning):
                old.minimum_version = ssl.TLSVersion.TLSv1_1
            with pytest.warns(DeprecationWarning):
                old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises(ConnectFailed):
                await open_channel(HOST, server.port, tls=old, timeout_ms=5000)

    on_loop(main)


def test_an_unusable_key_stops_the_start_and_names_the_file(tmp_path: Path) -> None:
    missing = TlsFiles(key_path=str(tmp_path / "no.pem"), cert_path=str(tmp_path / "no.crt"))
    with pytest.raises(TlsUnusable, match=r"no\.pem"):
        server_context(missing)
    assert server_context(TlsFiles(), test_mode=False) is None


def test_garbage_inside_tls_closes_and_garbage_as_tls_does_too(on_loop: Any) -> None:
    async def main() -> None:
        async with RemotingServer(Listen(tls=TlsMode.PERMISSIVE), {10: echo}) as server:
            reader, writer = await asyncio.open_connection(
                HOST, server.port, ssl=client_context(verify=False)
            )
            writer.write(Command(10, opaque=3).encode() + b"\x7f\xff\xff\xff\x00\x00\x00\x00")
            data = await asyncio.wait_for(reader.read(), 5)
            (frame,) = FrameSplitter().feed(data)
            assert Command.decode(frame).opaque == 3
            writer.close()
            answers, closed = await asyncio.to_thread(
                plain_exchange, server.port, b"\x16garbage that is no hello", expect_frames=0
            )
            # an alert may come back; never an answer
            assert closed and answers == []

    on_loop(_tolerating_alerts(main))


def _tolerating_alerts(main: Main) -> Main:
    """The TLS alert is no frame: plain_exchange's splitter may call it one that broke the protocol."""
    from tandemmq.cluster.remoting.errors import PeerBrokeProtocol

    async def run() -> None:
        try:
            await main()
        except PeerBrokeProtocol as problem:
            assert "frame length" in str(problem)

    return run


def test_malformed_frames_close_that_connection_only(on_loop: Any) -> None:
    async def main() -> None:
        async with RemotingServer(Listen(), {10: echo}) as server:
            good = await open_channel(HOST, server.port)
            for data in (
                bytes.fromhex("7fffffff00000000"),
                b"GET / HTTP/1.1\r\n\r\n",
                b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n",
                bytes(12),
            ):
                answers, closed = await asyncio.to_thread(
                    plain_exchange, server.port, data, expect_frames=0
                )
                assert closed and answers == [], data
            assert (await good.request(Command(10), 5000)).code == 0
            assert server.stats.protocol_violations == 4
            good.close()

    on_loop(main)


def test_slow_first_frames_and_idle_connections_are_closed_by_the_sweep(on_loop: Any) -> None:
    limits = ConnectionLimits(first_frame_ms=200, frame_ms=200, idle_ms=600)

    async def main() -> None:
        async with RemotingServer(Listen(limits=limits), {10: echo}) as server:
            silent, half = [await asyncio.open_connection(HOST, server.port) for _ in range(2)]
            half[1].write(Command(10).encode()[:9])
            idle = await open_channel(HOST, server.port)
            await idle.request(Command(10), 5000)
            async with asyncio.timeout(10):
                assert await silent[0].read() == b""
                assert await half[0].read() == b""
                gone = asyncio.get_running_loop().create_future()
                idle.on_close(lambda _: gone.set_result(None))
                await gone
            assert not server.connections
            for _, writer in (silent, half):
                writer.close()

    on_loop(main)


def test_a_reader_that_never_reads_is_cut_off_while_others_are_served(on_loop: Any) -> None:
    limits = ConnectionLimits(drain_ms=500)

    def large(request: Command, _: Connection) -> Command:
        return request.reply(body=bytes(1 << 20))

    async def main() -> None:
        async with RemotingServer(Listen(limits=limits), {10: echo, 11: large}) as server:
            deaf = socket.create_connection((HOST, server.port))
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.sendall(Command(11).encode() * 100)
            good = await open_channel(HOST, server.port)
            async with asyncio.timeout(10):
                while server.stats.slow_readers == 0:
                    assert (await good.request(Command(10), 5000)).code == 0
                    assert max(c.output_bytes for c in server.connections.values()) < 8 << 20
            good.close()
            deaf.close()

    on_loop(main)


def test_many_large_answers_asked_for_at_once_come_at_the_readers_pace(on_loop: Any) -> None:
    def large(request: Command, _: Connection) -> Command:
        return request.reply(body=bytes(1 << 20))

    async def main() -> None:
        async with RemotingServer(Listen(), {10: echo, 11: large}) as server:
            reader, writer = await asyncio.open_connection(HOST, server.port)
            asked = 200  # 200 MiB of answers, of which 64 may wait
            for opaque in range(asked):
                code = 10 if opaque % 10 == 9 else 11
                writer.write(Command(code, opaque=opaque).encode())
            async with asyncio.timeout(30):
                for opaque in range(asked):
                    frame = await reader.readexactly(4)
                    frame += await reader.readexactly(int.from_bytes(frame, "big"))
                    assert Command.decode(frame).opaque == opaque
            assert server.stats.slow_readers == 0
            writer.close()
            await writer.wait_closed()

    on_loop(main)


def test_a_dead_server_fails_requests_and_connects_quickly(on_loop: Any) -> None:
    async def main() -> None:
        server = RemotingServer(Listen(), {10: echo, 11: never})
        await server.start()
        port = server.port
        pool = ChannelPool()
        address = f"{HOST}:{port}"
        with pytest.raises(RequestTimedOut):
            await pool.request(address, Command(11), 50)
        waiting = [(await pool.get(address)).request_nowait(Command(11), 60_000) for _ in range(3)]
        await (await pool.get(address)).request(Command(10), 5000)
        await server.close(drain_ms=0)
        for each in waiting:
            with pytest.raises(ConnectionLost, match=address):
                await each
        with pytest.raises(ConnectFailed, match=address):
            await pool.get(address)
        await pool.close()
        with pytest.raises(ConnectFailed, match="closed"):
            await pool.get(address)

    on_loop(main)


def test_a_pool_shares_one_connection_and_opens_another_when_it_is_lost(on_loop: Any) -> None:
    async def main() -> None:
        async with RemotingServer(Listen(), {10: echo}) as server:
            pool = ChannelPool()
            address = f"{HOST}:{server.port}"
            first, second = await asyncio.gather(pool.get(address), pool.get(address))
            assert first is second
            await first.request(Command(10), 5000)
            assert len(server.connections) == 1
            first.close()
            third = await pool.get(address)
            assert third is not first
            assert pool.channels() == [third]
            assert (await third.request(Command(10), 5000)).code == 0
            await pool.close()

    on_loop(main)


def test_one_caller_giving_up_on_a_connect_does_not_fail_the_others(on_loop: Any) -> None:
    async def main() -> None:
        async with RemotingServer(Listen(), {10: echo}) as server:
            pool = ChannelPool()
            address = f"{HOST}:{server.port}"
            impatient = asyncio.create_task(pool.get(address))
            patient = asyncio.create_task(pool.get(address))
            await asyncio.sleep(0)
            impatient.cancel()
            assert not (await patient).closed
            with pytest.raises(asyncio.CancelledError):
                await impatient
            await pool.close()

    on_loop(main)


def test_a_server_asks_its_client_over_the_same_connection(on_loop: Any) -> None:
    async def main() -> None:
        known: list[Connection] = []

        def heartbeat(request: Command, connection: Connection) -> Command:
            known.append(connection)
            return request.reply()

        async with RemotingServer(Listen(), {34: heartbeat}) as server:
            for binary in (False, True):
                channel = await open_channel(HOST, server.port, table={307: echo})
                await channel.request(Command(34, binary=binary), 5000)
                answer = await known[-1].request(Command(307, {"clientId": "c"}, b"x"), 5000)
                assert (answer.ext, answer.body, answer.binary) == ({"clientId": "c"}, b"x", binary)
                assert (await known[-1].request(Command(309), 5000)).code == 3
                channel.close()

    on_loop(main)


def test_closing_lets_requests_at_work_finish_and_tells_owners_of_the_end(on_loop: Any) -> None:
    async def main() -> None:
        ended: list[str] = []
        begun = asyncio.Event()

        async def slow(request: Command, _: Connection) -> Command:
            begun.set()
            await asyncio.sleep(0.05)
            return request.reply(remark="finished")

        server = RemotingServer(
            Listen(), {11: slow}, on_close=lambda connection: ended.append(connection.close_reason)
        )
        await server.start()
        channel = await open_channel(HOST, server.port)
        asked = channel.request_nowait(Command(11), 5000)
        await begun.wait()
        await server.close(drain_ms=5000)
        assert (await asked).remark == "finished"
        assert ended == ["the server stops"]
        channel.close()

    on_loop(main)


def test_frame_limits_apply_to_answers_as_well(on_loop: Any) -> None:
    async def main() -> None:
        limits = ConnectionLimits(frame=FrameLimits(frame_bytes_max=2000))
        async with RemotingServer(Listen(limits=limits), {10: echo}) as server:
            channel = await open_channel(HOST, server.port)
            assert (await channel.request(Command(10, body=bytes(1000)), 5000)).code == 0
            with pytest.raises(ConnectionLost):
                await channel.request(Command(10, body=bytes(3000)), 5000)

    on_loop(main)


def test_connecting_has_a_deadline_that_covers_the_handshake(on_loop: Any) -> None:
    async def main() -> None:
        listener = socket.create_server((HOST, 0))  # accepts in the kernel, never answers
        port = listener.getsockname()[1]
        try:
            with pytest.raises(ConnectFailed, match="200 ms"):
                await open_channel(HOST, port, tls=client_context(verify=False), timeout_ms=200)
        finally:
            listener.close()

    on_loop(main)
