// One connection to NATS. The client takes user and password as options, not as part of the address.

import { connect } from "@nats-io/transport-node";

export function connectToNats(address = process.env.NATS_URL ?? "nats://localhost:4222") {
  const { host, username, password } = new URL(address);
  const account = username ? { user: decodeURIComponent(username), pass: decodeURIComponent(password) } : {};
  return connect({ servers: host, ...account });
}
