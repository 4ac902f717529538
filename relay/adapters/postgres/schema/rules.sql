-- Rules that many statements share, each written once: lanes, classes of locks, failed heads, used attempts.
--
-- The planner replaces each call of these functions by its text (LANGUAGE sql, one expression, no SECURITY DEFINER,
-- no SET). So a call of `relay_lane` matches the indexes, which hold the expression itself.

-- A key belongs to one of 64 lanes. An event without a key belongs to none.
CREATE FUNCTION relay_lane_of_hash(hash INT) RETURNS INT LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN hash & 63;

CREATE FUNCTION relay_lane(partition_key TEXT) RETURNS INT LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN partition_key = '' THEN -1 ELSE relay_lane_of_hash(hashtext(partition_key)) END;

-- Classes of advisory locks. 1785882986 is that of upgrades and grants, which come before these functions.
-- Lanes: held by their publisher until its claim ends.
CREATE FUNCTION relay_publisher_locks() RETURNS INT LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1785882987;

-- Hashes of keys: held by a transaction that has written an event of the key, until its commit.
CREATE FUNCTION relay_key_locks() RETURNS INT LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1785882988;

-- Lanes: shared by writers, together with keys. A writer of over 64 keys holds all lanes alone instead.
CREATE FUNCTION relay_lane_locks() RETURNS INT LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1785882989;

-- Concurrency keys of tasks: held while their running tasks are counted and one is claimed.
CREATE FUNCTION relay_concurrency_locks() RETURNS INT LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1785882990;

-- The archive: held by the one batch that is being made.
CREATE FUNCTION relay_archive_locks() RETURNS INT LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1785882991;

-- Whether a failed event keeps a later one of its key waiting. A replayed event that fails only holds back other
-- replays. A dead event holds back others if dead heads block.
CREATE FUNCTION relay_holds_back(
  generation INT, dead_at TIMESTAMPTZ, later_generation INT, dead_head_blocks BOOLEAN
) RETURNS BOOLEAN LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (generation = 0 OR later_generation > 0) AND (dead_at IS NULL OR dead_head_blocks);

-- Whether a message has used up its attempts without a result: another call would kill the next worker too. A
-- rejected message has its verdict already.
CREATE FUNCTION relay_exhausted(dead_letter_reason TEXT, attempts INT, max_attempts INT)
RETURNS BOOLEAN LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN dead_letter_reason IS NULL AND attempts >= max_attempts;
