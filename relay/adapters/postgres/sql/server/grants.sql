-- Who may write to our tables besides their owner, superusers and the roles of this session: the role, the table, the
-- right, the column if it is for one, and whether the role has been given what only the fleet gets.
WITH me AS (SELECT oid, rolsuper FROM pg_roles WHERE rolname = current_user),
     ours AS (SELECT oid, relname, relowner, relacl FROM pg_class
              WHERE relnamespace = current_schema()::regnamespace AND relname = ANY (%(tables)s::text[])),
     given AS (
       SELECT ours.relname, ours.relowner, one.grantee, one.privilege_type, NULL AS attname
       FROM ours CROSS JOIN LATERAL aclexplode(ours.relacl) AS one
       UNION ALL
       SELECT ours.relname, ours.relowner, one.grantee, one.privilege_type, att.attname
       FROM ours JOIN pg_attribute AS att ON att.attrelid = ours.oid AND att.attacl IS NOT NULL
       CROSS JOIN LATERAL aclexplode(att.attacl) AS one),
     fleet AS (
       SELECT one.grantee FROM pg_proc AS p CROSS JOIN LATERAL aclexplode(p.proacl) AS one
       WHERE p.pronamespace = current_schema()::regnamespace AND p.proname = %(of_fleet)s)
SELECT coalesce(role.rolname, 'PUBLIC')::text, given.relname::text, given.privilege_type, given.attname::text,
       given.grantee <> 0 AND given.grantee IN (SELECT grantee FROM fleet)
FROM given CROSS JOIN me LEFT JOIN pg_roles AS role ON role.oid = given.grantee
WHERE given.privilege_type IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER')
  AND given.grantee NOT IN (given.relowner, me.oid) AND NOT coalesce(role.rolsuper, false)
  AND CASE WHEN me.rolsuper OR given.grantee = 0 THEN true ELSE NOT pg_has_role(me.oid, given.grantee, 'MEMBER') END
UNION ALL
SELECT role.rolname::text, 'all tables', 'INSERT, UPDATE, DELETE', NULL, false
FROM pg_auth_members AS member JOIN pg_roles AS role ON role.oid = member.member CROSS JOIN me
WHERE member.roleid = to_regrole('pg_write_all_data') AND role.oid <> me.oid AND NOT role.rolsuper
ORDER BY 1, 2, 3, 4
LIMIT 2000
