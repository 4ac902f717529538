"""The steps of the broker in Redis. Each replaces keys of another type (`relay.adapters.redis_keys`)."""

from __future__ import annotations

from typing import Final

from relay.adapters.redis_keys import SURE

#: Fetches messages: first deferred ones, as far as their shares have capacity, then a limited number from the
#: queue. A message from the queue whose share has no capacity is deferred. Returns three values: whether the queue
#: may have more, whether any are deferred, and the messages. KEYS: the queue, the worker's unacknowledged
#: messages, the heartbeats of workers. ARGV: the time, the worker's id, the limit, the capacity of a share that is
#: not named; then each share and its capacity.
FETCH: Final = (
    SURE
    + """
sure("zadd", KEYS[3], ARGV[1], ARGV[2])
local queue, most, default, capacity, deferred = KEYS[1], tonumber(ARGV[3]), tonumber(ARGV[4]), {}, {}
for i = 5, #ARGV, 2 do capacity[ARGV[i]] = tonumber(ARGV[i + 1]) end
local messages = {}
local function fetch(ids)
    sure("sadd", KEYS[2], unpack(ids))
    for i, data in ipairs(sure("hmget", queue .. ".msgs", unpack(ids))) do
        if data then table.insert(messages, ids[i]) table.insert(messages, data)
        else redis.call("srem", KEYS[2], ids[i]) end
    end
end
for _, share in ipairs(sure("smembers", queue .. ".deferred")) do
    local list, free = queue .. ".deferred:" .. share, capacity[share] or default
    local ids = free > 0 and sure("lpop", list, free) or {}
    if ids and #ids > 0 then fetch(ids) end
    capacity[share] = free - (ids and #ids or 0)
    deferred[share] = redis.call("exists", list) == 1 or nil
    if not deferred[share] then redis.call("srem", queue .. ".deferred", share) end
end
local count, seen, more = 0, 0, 1
while more == 1 and count < most and seen < 1000 do
    local limit, ours, others = most - count, {}, {}
    local ids = sure("lpop", queue, limit) or {}
    if #ids < limit then more = 0 end
    seen = seen + #ids
    for _, id in ipairs(ids) do
        local share = string.match(id, "^([^|]*)|") or ""
        local free = capacity[share] or default
        if share ~= "" and (deferred[share] or free <= 0) then
            others[share] = others[share] or {}
            table.insert(others[share], id)
            deferred[share] = true
        else
            capacity[share] = free - 1
            table.insert(ours, id)
        end
    end
    for share, ids in pairs(others) do
        sure("sadd", queue .. ".deferred", share)
        sure("rpush", queue .. ".deferred:" .. share, unpack(ids))
    end
    if #ours > 0 then fetch(ours) end
    count = count + #ours
end
return {more, next(deferred) and 1 or 0, messages}
"""
)
#: Acknowledges messages as the broker's own script does: one that was given back meanwhile keeps its content.
ACK: Final = (
    SURE
    + """
for _, id in ipairs(ARGV) do
    if sure("srem", KEYS[1], id) > 0 then sure("hdel", KEYS[2], id) end
end
"""
)
#: Moves a message to the dead ones as the broker's own script does. KEYS: the unacknowledged messages, the
#: messages, the dead, their messages. ARGV: the time, the id.
NACK: Final = (
    SURE
    + """
if sure("srem", KEYS[1], ARGV[2]) > 0 then
    local message = sure("hget", KEYS[2], ARGV[2])
    if message then
        sure("zadd", KEYS[3], ARGV[1], ARGV[2])
        sure("hset", KEYS[4], ARGV[2], message)
        redis.call("hdel", KEYS[2], ARGV[2])
    end
end
"""
)
#: Puts what a worker has fetched and not finished back into its queues. KEYS: in turn its unacknowledged messages
#: of a queue, and the queue.
GIVE_BACK: Final = (
    SURE
    + """
for i = 1, #KEYS, 2 do
    for _, id in ipairs(sure("smembers", KEYS[i])) do
        if sure("hexists", KEYS[i + 1] .. ".msgs", id) == 1 then sure("rpush", KEYS[i + 1], id) end
    end
    redis.call("del", KEYS[i])
end
"""
)
