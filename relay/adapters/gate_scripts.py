"""The steps of gates in Redis. Each is atomic and takes one round trip: an idle fleet does little else.

If a duty is done, its gate holds "done" instead of a token, until the next run.
"""

from __future__ import annotations

from typing import Final

OPEN: Final = """
local holder, queue = redis.call("get", KEYS[1]), KEYS[2]
if ARGV[3] ~= "force" then
    if holder and holder ~= "done" then return 0 end
    local sent = queue and not holder and redis.call("hget", KEYS[3], ARGV[6])
    local head = sent and redis.call("lindex", queue, 0)
    local found = head and redis.call("hget", queue .. ".msgs", head)
    local since = found and string.match(found, '"relay_enqueued":(%d+)')
    if since and since ~= "0" and tonumber(since) <= tonumber(sent) then return 0 end
end
redis.call("set", KEYS[1], ARGV[1], "PX", ARGV[2])
if queue then
    local clock = redis.call("time")
    local now = string.format("%d", clock[1] * 1000 + math.floor(clock[2] / 1000))
    redis.call("hset", KEYS[3], ARGV[6], now)
    local data = string.gsub(ARGV[5], '"relay_enqueued":0', '"relay_enqueued":' .. now, 1)
    redis.call("hset", queue .. ".msgs", ARGV[4], data)
    redis.call("rpush", queue, ARGV[4])
end
return 1
"""
RENEW: Final = """
local holder = redis.call("get", KEYS[1])
if holder and holder ~= ARGV[1] and holder ~= ARGV[1] .. ARGV[3] then return 0 end
redis.call("set", KEYS[1], ARGV[4], "PX", ARGV[2])
return 1
"""
CLOSE: Final = """
if redis.call("get", KEYS[1]) ~= ARGV[1] then return end
redis.call("hdel", KEYS[2], ARGV[3])
if ARGV[2] == "0" then redis.call("del", KEYS[1])
else redis.call("set", KEYS[1], "done", "PX", ARGV[2]) end
"""
WAKE: Final = """
for _, key in ipairs(KEYS) do
    local holder = redis.call("get", key)
    if holder and string.sub(holder, -#ARGV[1]) == ARGV[1] then redis.call("del", key) end
end
"""
#: Takes the parts that are due. A part that rests for longer than allowed was marked before the clock went back.
#: ARGV: how long a part is taken for; then each part and the longest time it may rest, in milliseconds.
TAKE: Final = """
local clock, names, taken, marks = redis.call("time"), {}, {}, {}
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
for i = 2, #ARGV, 2 do table.insert(names, ARGV[i]) end
for i, mark in ipairs(redis.call("hmget", KEYS[1], unpack(names))) do
    local rest = (tonumber(mark or 0) or 0) - now
    if rest <= 0 or rest > tonumber(ARGV[2 * i + 1]) then
        table.insert(taken, names[i])
        table.insert(marks, names[i])
        table.insert(marks, string.format("%d", now + ARGV[1]))
    end
end
if #marks > 0 then redis.call("hset", KEYS[1], unpack(marks)) end
return {now, taken}
"""
SCRIPTS: Final = (OPEN, RENEW, CLOSE, WAKE, TAKE)
