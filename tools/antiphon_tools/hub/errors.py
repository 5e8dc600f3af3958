"""Converts errors of the hub to messages that contain the model and a remedy."""

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
            f"model: {settings.url} has no model {model.repository} (asked for revision "
            f"{model.revision}), or it is private; correct the name, or give a token that may "
            "read it (HF_TOKEN or --token)",
            field="model",
        ) from error
    except RevisionNotFoundError as error:
        raise NotFound(
            f"model: {model.repository} has no revision {model.revision} at {settings.url}; give a "
            "branch, tag or commit that it has",
            field="model",
        ) from error
    except LocalEntryNotFoundError as error:
        raise _unreachable(model, settings, error) from error
    except EntryNotFoundError as error:
        raise NotFound(f"{model}: a file is not there: {_line(error)}", field="model") from error
    except HfHubHTTPError as error:
        raise _refused(model, settings, error.response.status_code) from error
    except httpx2.HTTPError as error:
        raise _unreachable(model, settings, error) from error
    except OSError as error:
        if error.errno in _FULL:
            raise ResourceExhausted(
                f"{settings.cache_dir}: no room to download {model}: {error.strerror}; free disk "
                "space, or name another folder (--cache or HF_HOME)"
            ) from error
        raise FailedPrecondition(
            f"{settings.cache_dir}: cannot hold {model}: {_line(error)}; name a folder that can be "
            "written (--cache or HF_HOME)"
        ) from error


def _gated(model: HubId, settings: HubSettings) -> AntiphonError:
    from huggingface_hub import get_token

    page = f"{settings.url}/{model.repository}"
    if settings.token or get_token():
        remedy = f"ask for access at {page} with the account of the token"
    else:
        remedy = (
            f"ask for access at {page}, then give a token of that account (HF_TOKEN or --token)"
        )
    return FailedPrecondition(f"model: {model} is gated; {remedy}", field="model")


def _refused(model: HubId, settings: HubSettings, status: int) -> AntiphonError:
    if status == 401:
        return FailedPrecondition(
            f"model: {settings.url} does not accept the token for {model} (401); give another one "
            "(HF_TOKEN or --token)",
            field="model",
        )
    if status == 403:
        return FailedPrecondition(
            f"model: the token may not read {model} at {settings.url} (403); give one that may, or "
            f"ask for access at {settings.url}/{model.repository}",
            field="model",
        )
    return Unavailable(f"{model}: {settings.url} answered with status {status}; try again later")


def _unreachable(model: HubId, settings: HubSettings, error: Exception) -> AntiphonError:
    return Unavailable(
        f"{model}: {settings.url} cannot be reached: {_line(error)}; check the network, "
        "HF_ENDPOINT and proxies, or give a directory in place of the id"
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
