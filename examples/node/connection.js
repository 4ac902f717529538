// One connection to NATS. The client takes user and password as options, not as part of the address, and it does not
// look at the scheme: with tls:// nothing, not even a password, may go to a server without TLS.

import { connect } from "@nats-io/transport-node";

export function connectToNats(address = process.env.NATS_URL ?? "nats://localhost:4222") {
  const { host, protocol, username, password } = new URL(address);
  const account = username ? { user: decodeURIComponent(username), pass: decodeURIComponent(password) } : {};
  const security = protocol === "tls:" ? { tls: {} } : {};
  return connect({ servers: host, ...account, ...security });
}
