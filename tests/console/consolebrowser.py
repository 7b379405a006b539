"""Headless Chromium, driven over the DevTools protocol: real clicks and keys, and what the page complained about."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
START_S: Final = 60.0
CALL_S: Final = 30.0
WAIT_S: Final = 30.0
LOOK_S: Final = 0.05
CLICKS_MAX: Final = 10
#: Chromium's errors when a page goes while a script runs in it, or before it does
LEFT: Final = ("navigated or closed", "Cannot find context", "context was destroyed")
FLAGS: Final = (
    "--headless=new", "--remote-debugging-port=0", "--no-first-run", "--no-default-browser-check", "--disable-gpu",
    "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--disable-default-apps", "--metrics-recording-only", "--hide-scrollbars",
    "--force-color-profile=srgb", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip


def program() -> str | None:
    """Where a Chromium is; None: nowhere."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class PageProblem(AssertionError):
    """Something did not become so in the page, or its script raised."""


class PageLeft(PageProblem):
    """The page went while it was asked: another is on its way."""


@dataclass
class Tab:
    """One page.

    complaints  what its console got as an error, exceptions, refused loads and violations of its policy
    requests    every address that was asked for
    """

    socket: aiohttp.ClientWebSocketResponse
    session: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))
    _answers: dict[int, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    _loaded: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, method: str, **given: Any) -> dict[str, Any]:
        """One command of the protocol. Raises PageProblem, PageLeft."""
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        command = {"id": number, "method": method, "params": given}
        if self.session:
            command["sessionId"] = self.session
        await self.socket.send_json(command)
        async with asyncio.timeout(CALL_S):
            found = await answer
        if "error" in found:
            left = any(each in found["error"]["message"] for each in LEFT)
            raise (PageLeft if left else PageProblem)(f"{method}: {found['error']}")
        result: dict[str, Any] = found["result"]
        return result

    async def listen(self) -> None:
        """Take answers and events until the socket closes."""
        async for message in self.socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                break
            said = json.loads(message.data)
            if "id" in said:
                answer = self._answers.pop(said["id"], None)
                if answer is not None and not answer.done():
                    answer.set_result(said)
            else:
                self._heard(said["method"], said["params"])

    def _heard(self, method: str, told: dict[str, Any]) -> None:
        match method:
            case "Page.loadEventFired":
                self._loaded.set()
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["exceptionDetails"])[:600])
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(told["args"])[:600])
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                entry = told["entry"]
                self.complaints.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")

    # --- what a person does ---

    async def go(self, url: str) -> None:
        """Open an address and wait until it is there."""
        self._loaded.clear()
        found = await self.call("Page.navigate", url=url)
        assert not found.get("errorText"), f"{url}: {found['errorText']}"
        await self.loaded()

    async def loaded(self) -> None:
        async with asyncio.timeout(CALL_S):
            await self._loaded.wait()

    async def click(self, selector: str, *, leads: bool = False) -> None:
        """Press the mouse in the middle of an element. leads: to another page; returns when that is there.

        Regions above may grow meanwhile, so that the mouse meets something else: then it is pressed again.
        """
        wanted = json.dumps(selector)
        await self.wait(f"document.querySelector({wanted})")
        for _ in range(CLICKS_MAX):
            place = await self.value(
                f"(() => {{ const e = document.querySelector({wanted}); if (!e) return null;"
                "window.met = false; document.addEventListener('click', (event) => {"
                f"window.met = !!event.target.closest({wanted}); }}, {{capture: true, once: true}});"
                "e.scrollIntoView({block: 'center', inline: 'center'}); const r = e.getClientRects()[0];"
                "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
            )
            if place is None:
                continue
            self._loaded.clear()
            for kind in ("mousePressed", "mouseReleased"):
                with contextlib.suppress(PageLeft):
                    await self.call(
                        "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1
                    )  # fmt: skip
            if await self.value("window.met !== false"):  # undefined: on another page by now
                break
        else:
            raise PageProblem(f"the mouse never met {selector}")
        if leads:
            await self.loaded()

    async def type(self, text: str) -> None:
        """Into what has the focus."""
        await self.call("Input.insertText", text=text)

    async def press(self, key: str, *, leads: bool = False) -> None:
        """One key, e.g. "g", "Enter"."""
        self._loaded.clear()
        codes = {"Enter": 13, "Tab": 9, "Escape": 27}
        given: dict[str, Any] = {
            "key": key,
            "windowsVirtualKeyCode": codes.get(key, ord(key[0].upper())),
        }
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **given)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **given)
        if leads:
            await self.loaded()

    # --- what a person sees ---

    async def value(self, script: str) -> Any:
        """What a script's expression is. A page that goes meanwhile: what it is on the next.

        Raises PageProblem with what it raised.
        """
        async with asyncio.timeout(CALL_S):
            while True:
                with contextlib.suppress(PageLeft):
                    found = await self.call(
                        "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
                    )
                    break
                await asyncio.sleep(LOOK_S)
        if "exceptionDetails" in found:
            raise PageProblem(
                f"{script}: {found['exceptionDetails'].get('exception', found['exceptionDetails'])}"
            )
        return found["result"].get("value")

    async def text(self, selector: str = "main") -> str:
        """What stands in an element, "" without one."""
        found = await self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        return str(found)

    async def wait(self, script: str, within_s: float = WAIT_S) -> Any:
        """Look until an expression is true. Raises PageProblem with what the page shows then."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    if found := await self.value(f"!!({script}) && JSON.stringify(!!({script}))"):
                        return found
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            shown = await self.text("body")
            raise PageProblem(f"not within {within_s:g} s: {script}\n{shown[:3000]}") from None

    async def says(self, text: str, selector: str = "main", within_s: float = WAIT_S) -> None:
        """Wait until a text stands in an element."""
        where = f"(document.querySelector({json.dumps(selector)})?.innerText ?? '')"
        await self.wait(f"{where}.includes({json.dumps(text)})", within_s)

    async def look(self, width: int, height: int, theme: str, *, phone: bool = False) -> None:
        """The size of the window in CSS pixels, and what the system prefers: light or dark."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        features = [{"name": "prefers-color-scheme", "value": theme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def picture(self) -> bytes:
        """What is seen now, as a PNG."""
        found = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(found["data"])


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Tab]:
    """A fresh browser with one tab; gone with everything it stored when the body ends."""
    with _started() as (process, home):
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(f"ws://{await _place(process, home)}", max_msg_size=0) as socket,
        ):
            tab = Tab(socket, "")
            listening = asyncio.create_task(tab.listen(), name="devtools")
            try:
                target = await tab.call("Target.createTarget", url="about:blank")
                attached = await tab.call(
                    "Target.attachToTarget", targetId=target["targetId"], flatten=True
                )
                tab.session = attached["sessionId"]
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await tab.call(f"{domain}.enable")
                yield tab
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)


@contextlib.contextmanager
def _started() -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The process and its home, a directory of its own."""
    found = program()
    assert found is not None
    with tempfile.TemporaryDirectory(prefix="tandem-chromium-", ignore_cleanup_errors=True) as home:
        flags = [*FLAGS, f"--user-data-dir={home}/profile"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # it refuses root otherwise; it sees pages of ours only
        with Path(home, "log").open("wb") as log:
            process = subprocess.Popen(
                [found, *flags, "about:blank"], stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "HOME": home, "XDG_RUNTIME_DIR": home},
            )  # fmt: skip
        try:
            yield process, Path(home)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a group of its own: its children go, too
            process.wait()


async def _place(process: subprocess.Popen[bytes], home: Path) -> str:
    """host:port/path of the browser's socket, which it writes when it is ready."""
    try:
        async with asyncio.timeout(START_S):
            while (place := _written(process, home)) is None:  # noqa: ASYNC110 - a file tells nobody
                await asyncio.sleep(LOOK_S)
            return place
    except TimeoutError:
        raise PageProblem(f"chromium is not ready: {_log(home)}") from None


def _written(process: subprocess.Popen[bytes], home: Path) -> str | None:
    if process.poll() is not None:
        raise PageProblem(f"chromium ended ({process.returncode}): {_log(home)}")
    file = home / "profile" / "DevToolsActivePort"
    lines = file.read_text().split() if file.exists() else []
    return f"127.0.0.1:{lines[0]}{lines[1]}" if len(lines) == 2 else None


def _log(home: Path) -> str:
    return (home / "log").read_text(errors="replace")[-2000:]
