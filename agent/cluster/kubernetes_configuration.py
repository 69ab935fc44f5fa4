"""Builds kubernetes-asyncio's Configuration: address, certificates, and where tokens come from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent.cluster import kubernetes_library
from agent.cluster.api_errors import ApiAway
from agent.cluster.credentials import ApiAccess, parsed
from agent.cluster.token_file import FileToken, FixedToken, PluginToken, Token
from agent.vendor_api.text import shorten

#: Connections of one pool; each watch holds one for as long as it lasts.
CONNECTIONS = 8
#: Seconds for a program that a kubeconfig names under `exec`.
PATIENCE = 30.0


@asynccontextmanager
async def configured(
    access: ApiAccess, library: kubernetes_library.Library
) -> AsyncIterator[tuple[Any, Token]]:
    """The library's Configuration. Its certificates are files as long as the context lasts.

    Raises:
        ApiAway: The kubeconfig, or a program that it names, gives no usable credentials.
    """
    configuration = library.configuration(host=access.server)
    configuration.connection_pool_maxsize = CONNECTIONS
    # Python 3.13 refuses CAs without a key identifier, as many clusters have; Go does not require one.
    configuration.disable_strict_ssl_verification = True
    if access.kubeconfig is None:
        configuration.ssl_ca_cert = str(access.ca_file) if access.ca_file else None
        yield configuration, await _renewed_by(_token(access, None), configuration)
        return
    reader = await asyncio.to_thread(_reader)
    try:
        loader = await _loaded(access.kubeconfig, reader, configuration)
        yield configuration, await _renewed_by(_token(access, loader), configuration)
    finally:
        # The library would keep a key from the kubeconfig on disk until this process ends normally.
        reader._cleanup_temp_files()


def _reader() -> Any:
    try:
        return kubernetes_library.load_kubeconfig()
    except (ImportError, RuntimeError) as error:
        raise ApiAway(f"kubeconfigs cannot be read here: {error}") from None


async def _loaded(path: Path, reader: Any, configuration: Any) -> Any:
    try:
        loader = reader.KubeConfigLoader(
            await asyncio.to_thread(parsed, path), config_base_path=str(path.parent)
        )
        async with asyncio.timeout(PATIENCE):
            await loader.load_and_set(configuration)
    except TimeoutError:
        raise ApiAway(f"{path}: the program that it names gave no answer within {PATIENCE:g} s") from None
    except Exception as error:  # of the library, or because of the file or the program
        raise ApiAway(f"{path}: {shorten(str(error) or type(error).__name__, 300)}") from None
    return loader


def _token(access: ApiAccess, loader: Any) -> Token:
    if access.token_file is not None:
        return FileToken(access.token_file)
    user = getattr(loader, "_user", None)
    return PluginToken(loader) if user is not None and "exec" in user else FixedToken()


async def _renewed_by(token: Token, configuration: Any) -> Token:
    configuration.refresh_api_key_hook = token
    if isinstance(token, FileToken):  # the other kinds have their first token already
        await token(configuration)
    return token
