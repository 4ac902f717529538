"""Every key of ours in Redis, and what becomes of one that holds another type of value.

Another program, or a person, may write any key. Redis holds only what the tables can tell again. So nothing waits:
a key of another type is deleted, and the step that met it is done. Redis' own log names the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

#: Begins a script. ``sure`` does a command, and deletes a key of another type first if the command meets one. It
#: costs nothing while all is well.
SURE: Final = """
local function sure(command, key, ...)
    local answer = redis.pcall(command, key, ...)
    if type(answer) ~= "table" or not answer.err then return answer end
    if string.find(answer.err, "WRONGTYPE", 1, true) then
        redis.log(redis.LOG_WARNING, "jetrelay: " .. key .. " held another type of value, and is replaced")
        redis.call("del", key)
    end
    return redis.call(command, key, ...)
end
"""
#: For the scripts of others. KEYS: keys. ARGV: for each a command that reads it, and nothing else.
REPLACE: Final = f"""{SURE}
for i, key in ipairs(KEYS) do sure(ARGV[i], key) end
"""


def fleet_keys(namespace: str) -> Mapping[str, str]:
    """The keys of a whole namespace, each with a command that reads it."""
    return {
        f"{namespace}:__heartbeats__": "ZCARD",
        f"{namespace}:members:beats": "ZCARD",
        f"{namespace}:members:publishing": "ZCARD",
        f"{namespace}:members": "HLEN",
    }


def queue_keys(namespace: str, queue: str, workers: Sequence[str] = ()) -> Mapping[str, str]:
    """The keys of a queue and of its delayed and dead jobs. ``workers``: those whose unfinished jobs count too."""
    key = f"{namespace}:{queue}"
    keys = {f"{key}{part}": "LLEN" for part in ("", ".DQ")}
    keys |= {f"{key}{part}.msgs": "HLEN" for part in ("", ".DQ", ".XQ")}
    keys |= {f"{key}.XQ": "ZCARD", f"{key}.deferred": "SMEMBERS"}
    acks = [f"{namespace}:__acks__.{worker}.{queue}" for worker in workers]
    return keys | {f"{name}{part}": "SMEMBERS" for name in acks for part in ("", ".DQ")}


def wrong_type(error: Any) -> bool:
    """Whether an error of Redis says that a key holds another type of value. Scripts wrap its text."""
    return "WRONGTYPE" in str(error)
