// The wire profiles: where events of each go, how one is written, and how one is read.
//
// write(event) makes { subject, msgId, headers, body }: by Nats-Msg-Id the stream drops what is published twice.
// newId(), if there, makes ids as the profile has them; else they are UUIDs.
// read(message) makes { id, type, payload } and what else is known, or throws Malformed. Where the contract
// deduplicates by something else than the id, it adds that as key.

import { cloudevents } from "./profiles/cloudevents.js";
import { byDefault } from "./profiles/default.js";
import { microdao } from "./profiles/microdao.js";
import { sr } from "./profiles/sr.js";

const profiles = { default: byDefault, cloudevents, microdao, sr };

export function profileCalled(name) {
  if (!Object.hasOwn(profiles, name)) {
    throw new Error(`no profile ${name}; there are: ${Object.keys(profiles).join(", ")}`);
  }
  return profiles[name];
}
