"""Converts hub errors to messages that contain the model and a remedy."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from antiphon.errors import (
    AntiphonError,
    FailedPrecondition,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from antiphon_tools.hub.hub_id import HubId
from antiphon_tools.hub.settings import HubSettings

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def explained(model: HubId, settings: HubSettings) -> Iterator[None]:
    """Convert errors of huggingface_hub, its HTTP client and the disk to an `AntiphonError`.

    The result is `Unavailable` if the hub cannot be reached or has an internal error.
    """
    import httpx2
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except GatedRepoError as error:
        raise _gated(model, settings) from error
    except RepositoryNotFoundError as error:
        raise NotFound(
            f"model: {settings.url} has no model {model.repository} (revision "
            f"{model.revision}), or the model is private; correct the name, or set a token with "
            "access to it (HF_TOKEN or --token)",
            field="model",
        ) from error
    except RevisionNotFoundError as error:
        raise NotFound(
            f"model: {model.repository} has no revision {model.revision} at {settings.url}; use "
            "an existing branch, tag or commit",
            field="model",
        ) from error
    except LocalEntryNotFoundError as error:
        raise _unreachable(model, settings, error) from error
    except EntryNotFoundError as error:
        raise NotFound(f"{model}: a file was not found: {_line(error)}", field="model") from error
    except HfHubHTTPError as error:
        raise _refused(model, settings, error.response.status_code) from error
    except httpx2.HTTPError as error:
        raise _unreachable(model, settings, error) from error
    except OSError as error:
        if error.errno in _FULL:
            raise ResourceExhausted(
                f"{settings.cache_dir}: there is not enough space to download {model}: "
                f"{error.strerror}; free disk space, or set another cache folder (--cache or "
                "HF_HOME)"
            ) from error
        raise FailedPrecondition(
            f"{settings.cache_dir}: can't store {model}: {_line(error)}; set a writable cache "
            "folder (--cache or HF_HOME)"
        ) from error


def _gated(model: HubId, settings: HubSettings) -> AntiphonError:
    from huggingface_hub import get_token

    page = f"{settings.url}/{model.repository}"
    if settings.token or get_token():
        remedy = f"request access at {page} with the account that owns the token"
    else:
        remedy = (
            f"request access at {page}, and set a token of the same account (HF_TOKEN or --token)"
        )
    return FailedPrecondition(f"model: {model} is gated; {remedy}", field="model")


def _refused(model: HubId, settings: HubSettings, status: int) -> AntiphonError:
    if status == 401:
        return FailedPrecondition(
            f"model: {settings.url} rejected the token for {model} (401); set another token "
            "(HF_TOKEN or --token)",
            field="model",
        )
    if status == 403:
        return FailedPrecondition(
            f"model: the token has no access to {model} at {settings.url} (403); use a token "
            f"that has access, or request access at {settings.url}/{model.repository}",
            field="model",
        )
    return Unavailable(f"{model}: {settings.url} responded with status {status}; try again later")


def _unreachable(model: HubId, settings: HubSettings, error: Exception) -> AntiphonError:
    return Unavailable(
        f"{model}: can't reach {settings.url}: {_line(error)}; check the network, HF_ENDPOINT "
        "and proxies, or use a directory instead of ORG/NAME"
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
