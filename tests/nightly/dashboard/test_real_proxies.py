"""The dashboard behind Caddy and nginx themselves, set up as docs/dashboard.md says: a password, TLS, a path.

The host of docs/dashboard.md is led to this machine, by the browser, and its certificate is nobody's; else
only ports, the hash of the password and a file's place are put in. Needs caddy and nginx in PATH.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from dashboards import FLAGS, PATIENCE
from places import ROOT
from playwright.async_api import Error, async_playwright, expect
from proxies import PASSWORD, served, works_in_whole

DOC = (ROOT / "docs" / "dashboard.md").read_text(encoding="utf-8")
HOST, READER = "lab.example.org", "reader"

CADDY = """
{{
    local_certs
    skip_install_trust
    admin off
    http_port {port}
    storage file_system {folder}
}}
"""
"""Beside the snippet: certificates of its own, and no port that others may have."""

NGINX = """
user root root; daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ }}
http {{
    include /etc/nginx/mime.types;
    access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
    fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
    server {{
        listen 127.0.0.1:{port} ssl; server_name {host};
        ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem;
{locations}
    }}
}}
"""

OPENSSL = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -keyout key.pem -out cert.pem -subj"


def snippet(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", DOC, re.MULTILINE | re.DOTALL)
    return str(found)


def put(text: str, **places: tuple[str, str]) -> str:
    """The text with each thing replaced that has to be there."""
    for name, (old, new) in places.items():
        assert old in text, f"docs/dashboard.md has no {name}"
        text = text.replace(old, new)
    return text


def program(name: str) -> str:
    if (path := shutil.which(name) or shutil.which(name, path="/usr/sbin")) is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install {name})")
    return path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def caddy(folder: Path, port: int, page: int) -> list[str]:
    caddy = program("caddy")
    hashed = subprocess.run(
        [caddy, "hash-password", "--plaintext", PASSWORD], capture_output=True, text=True, check=True
    ).stdout.strip()
    (word,) = re.findall(r"write `(\w+)`", DOC)
    version = subprocess.run([caddy, "version"], capture_output=True, text=True, check=True).stdout
    old = tuple(map(int, re.findall(r"\d+", version)[:2])) < (2, 8)
    site = put(
        snippet("caddy"),
        site=(f"{HOST} {{", f"{HOST}:{port} {{"),
        hash=("$2a$14$...", hashed),
        page=("127.0.0.1:8080", f"127.0.0.1:{page}"),
        password=("basic_auth", word if old else "basic_auth"),
    )
    settings = CADDY.format(folder=folder, port=free_port())
    (folder / "Caddyfile").write_text(settings + site)
    return [caddy, "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


def nginx(folder: Path, port: int, page: int, **changes: tuple[str, str]) -> list[str]:
    nginx = program("nginx")
    (folder / "users").write_text(f"{READER}:{{PLAIN}}{PASSWORD}\n")
    subprocess.run(
        [*OPENSSL.split(), f"/CN={HOST}"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    locations = put(
        put(snippet("nginx"), **changes),
        users=("/etc/nginx/swarm.users", str(folder / "users")),
        page=("127.0.0.1:8080", f"127.0.0.1:{page}"),
    )
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port, host=HOST, locations=locations))
    return [nginx, "-p", str(folder), "-c", str(folder / "nginx.conf")]


KEEPS = {
    "path": ("proxy_pass http://127.0.0.1:8080/;", "proxy_pass http://127.0.0.1:8080;"),
    "host": ("proxy_http_version", "proxy_set_header Host $host;\n    proxy_http_version"),
}
"""What docs/dashboard.md says of nginx beside its snippet."""


@asynccontextmanager
async def running(command: list[str], port: int) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(*command)
    try:
        async with asyncio.timeout(PATIENCE / 1000):
            while process.returncode is None:
                try:
                    (await asyncio.open_connection("127.0.0.1", port))[1].close()
                    break
                except ConnectionRefusedError:
                    await asyncio.sleep(0.05)
        assert process.returncode is None, "it ended at once"
        yield
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


@pytest.mark.parametrize("front", ["caddy", "nginx", "nginx that keeps path and host"])
def test_the_page_works_behind_a_proxy_that_is_set_up_as_we_say(tmp_path: Path, front: str) -> None:
    chromium = shutil.which("chromium")
    assert chromium is not None, "`make chromium` installs it"
    expect.set_options(timeout=PATIENCE)

    async def scene() -> None:
        port = free_port()
        url = f"https://{HOST}:{port}/swarm/"
        keeps = front.endswith("host")
        async with served("/swarm" if keeps else "", () if front == "nginx" else (HOST,)) as (page, feed):
            if front == "caddy":
                command = caddy(tmp_path, port, page)
            else:
                command = nginx(tmp_path, port, page, **KEEPS if keeps else {})
            async with running(command, port), async_playwright() as playwright:
                browser = await playwright.chromium.launch(
                    executable_path=chromium, args=[*FLAGS, f"--host-resolver-rules=MAP {HOST} 127.0.0.1"]
                )
                stranger = await browser.new_context(ignore_https_errors=True)
                with pytest.raises(Error, match="ERR_INVALID_AUTH_CREDENTIALS"):
                    await (await stranger.new_page()).goto(url)
                known = await browser.new_context(
                    ignore_https_errors=True, http_credentials={"username": READER, "password": PASSWORD}
                )
                led = await (await known.new_page()).goto(url.removesuffix("/"))
                assert led is not None and led.url == url
                await works_in_whole(known, url, feed)
                await browser.close()

    asyncio.run(scene())
