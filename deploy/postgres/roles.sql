-- Roles and databases for jetrelay: run once, with psql, as a superuser.
--
--   relay_owner   owns the databases and their tables: `relay db upgrade` and `relay db grant`, nothing else
--   relay         the fleet (scheduler, workers, `relay`): reads and writes rows, changes no table
--   application   a service: records events and tasks, and owns a schema for its own tables
--
-- The rights on our tables come from `relay db grant --relay relay --application application`, after each upgrade.
-- Passwords come from the environment: RELAY_OWNER_PASSWORD, RELAY_PASSWORD, APPLICATION_PASSWORD.
\set ON_ERROR_STOP on
\getenv owner_password RELAY_OWNER_PASSWORD
\getenv relay_password RELAY_PASSWORD
\getenv application_password APPLICATION_PASSWORD
SET password_encryption = 'scram-sha-256';

CREATE ROLE relay_owner LOGIN PASSWORD :'owner_password';
CREATE ROLE relay LOGIN PASSWORD :'relay_password';
CREATE ROLE application LOGIN PASSWORD :'application_password';

-- One database for each context.
CREATE DATABASE vibespro OWNER relay_owner;
CREATE DATABASE sea OWNER relay_owner;

REVOKE ALL ON DATABASE vibespro, sea FROM PUBLIC;
GRANT CONNECT ON DATABASE vibespro, sea TO relay, application;
ALTER ROLE application SET search_path = application, public;

-- What the owner makes later is nobody's either, until it is granted.
\connect vibespro
CREATE SCHEMA application AUTHORIZATION application;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
ALTER DEFAULT PRIVILEGES FOR ROLE relay_owner REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

\connect sea
CREATE SCHEMA application AUTHORIZATION application;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
ALTER DEFAULT PRIVILEGES FOR ROLE relay_owner REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
