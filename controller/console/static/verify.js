// Verifies the audit log in this browser: signatures (Ed25519), inclusion and consistency (RFC 6962).

const SEEN = "audit-seen";
const MOST_WITNESSES = 50;

const encoder = new TextEncoder();
const bytesOf = (text) => Uint8Array.from(atob(text), (x) => x.charCodeAt(0));
const same = (a, b) => a.length === b.length && a.every((x, i) => x === b[i]);
const joined = (...parts) => Uint8Array.from(parts.flatMap((x) => [...x]));
const sha256 = async (bytes) => new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
const leafHash = (line) => sha256(joined([0], encoder.encode(line)));
const nodeHash = (left, right) => sha256(joined([1], left, right));

class Wrong extends Error {}

function demand(holds, text) {
  if (!holds) throw new Wrong(text);
}

/** Text and signatures of a signed note (C2SP). */
export function readNote(note) {
  const end = note.lastIndexOf("\n\n");
  demand(end > 0 && note.endsWith("\n"), "the checkpoint is no signed note");
  const signatures = note.slice(end + 2, -1).split("\n").map((line) => {
    const found = /^— (\S+) ([A-Za-z0-9+/=]+)$/.exec(line);
    demand(found, "a signature line is not as it should be");
    return { name: found[1], blob: bytesOf(found[2]) };
  });
  return { text: note.slice(0, end + 1), signatures };
}

/** A verifier key, NAME+ID+BASE64. */
export async function readKey(text) {
  const found = /^(.+)\+([0-9a-f]{8})\+([A-Za-z0-9+/=]+)$/.exec(text);
  demand(found, "the log's key cannot be read");
  const encoded = bytesOf(found[3]);
  demand(encoded.length === 33 && encoded[0] === 1, "the log's key is no Ed25519 key");
  const id = (await sha256(joined(encoder.encode(`${found[1]}\n`), encoded))).slice(0, 4);
  const hex = [...id].map((x) => x.toString(16).padStart(2, "0")).join("");
  demand(hex === found[2], "the key's id does not belong to it");
  const key = await crypto.subtle.importKey("raw", encoded.slice(1), { name: "Ed25519" }, false, ["verify"]);
  return { name: found[1], id, key };
}

/** Origin, size and root of a checkpoint that `key` has signed. */
export async function openCheckpoint(note, key) {
  const { text, signatures } = readNote(note);
  const mine = signatures.filter((x) => x.name === key.name && same(x.blob.slice(0, 4), key.id));
  demand(mine.length > 0, "the checkpoint is not signed by the log's key");
  for (const one of mine)
    demand(
      await crypto.subtle.verify("Ed25519", key.key, one.blob.slice(4), encoder.encode(text)),
      "the checkpoint's signature does not hold",
    );
  const [origin, size, root] = text.split("\n");
  demand(origin === key.name, "the checkpoint is of another log");
  demand(/^(0|[1-9][0-9]{0,15})$/.test(size), "the checkpoint has no size");
  return { origin, size: Number(size), root: bytesOf(root) };
}

// Sizes can be larger than what bit operators take.
const odd = (x) => x % 2 === 1;
const half = (x) => Math.floor(x / 2);

export async function verifyInclusion(leaf, index, size, root, proof) {
  demand(index >= 0 && index < size, "the record is not in the tree");
  let node = index, last = size - 1, found = leaf;
  for (const sibling of proof) {
    demand(last > 0, "the proof is too long");
    if (odd(node) || node === last) {
      found = await nodeHash(sibling, found);
      while (node > 0 && !odd(node)) { node = half(node); last = half(last); }
    } else found = await nodeHash(found, sibling);
    node = half(node); last = half(last);
  }
  demand(last === 0, "the proof is too short");
  demand(same(found, root), "the proof leads to another root");
}

export async function verifyConsistency(oldSize, oldRoot, newSize, newRoot, proof) {
  demand(oldSize <= newSize, "the log is shorter than it was");
  if (oldSize === newSize || oldSize === 0) {
    demand(proof.length === 0, "the proof is too long");
    demand(oldSize === 0 || same(oldRoot, newRoot), "the same size has another root");
    return;
  }
  const isWhole = Number.isInteger(Math.log2(oldSize));
  const path = isWhole ? [oldRoot, ...proof] : [...proof];
  demand(path.length > 0, "the proof is too short");
  let node = oldSize - 1, last = newSize - 1;
  while (odd(node)) { node = half(node); last = half(last); }
  let first = path[0], second = path[0];
  for (const sibling of path.slice(1)) {
    demand(last > 0, "the proof is too long");
    if (odd(node) || node === last) {
      first = await nodeHash(sibling, first);
      second = await nodeHash(sibling, second);
      while (node > 0 && !odd(node)) { node = half(node); last = half(last); }
    } else second = await nodeHash(second, sibling);
    node = half(node); last = half(last);
  }
  demand(last === 0, "the proof is too short");
  demand(same(first, oldRoot) && same(second, newRoot), "the proof leads to another root");
}

// --- the page

async function ask(path) {
  const answer = await fetch(path);
  const found = await answer.json();
  demand(answer.ok, found.error ?? `the controller answered ${answer.status}`);
  return found;
}

async function consistency(from, head) {
  if (from.size === 0 || from.size === head.size) return [];
  demand(from.size < head.size, `the log has ${head.size} records, and had ${from.size}`);
  const found = await ask(`/v1/audit/proof?from=${from.size}&size=${head.size}`);
  return found.consistency.map(bytesOf);
}

function say(list, text, good) {
  const line = document.createElement("li");
  line.textContent = `${good ? "✓" : "✗"} ${text}`;
  if (!good) line.className = "bad-word";
  list.append(line);
}

async function checkpoint() {
  const shown = await ask("/v1/audit/checkpoint");
  const key = await readKey(shown.key);
  return { shown, key, head: await openCheckpoint(shown.note, key) };
}

async function verifyLog(list) {
  list.replaceChildren();
  try {
    const { shown, key, head } = await checkpoint();
    say(list, `The checkpoint over ${head.size} records of ${head.origin} is signed by ${shown.key}`, true);
    const seen = JSON.parse(localStorage.getItem(`${SEEN} ${head.origin}`) ?? "null");
    if (seen === null) say(list, "This browser sees this log for the first time, and remembers its key", true);
    else {
      demand(seen.key === shown.key, `the log's key is another than this browser has seen: ${seen.key}`);
      const old = { size: seen.size, root: bytesOf(seen.root) };
      await verifyConsistency(old.size, old.root, head.size, head.root, await consistency(old, head));
      say(list, `It continues the ${old.size} records that this browser has seen`, true);
    }
    const kept = { key: shown.key, size: head.size, root: btoa(String.fromCharCode(...head.root)) };
    localStorage.setItem(`${SEEN} ${head.origin}`, JSON.stringify(kept));
    await verifyWitnesses(list, shown, key, head);
  } catch (error) {
    say(list, String(error.message ?? error), false);
  }
}

async function verifyWitnesses(list, shown, key, head) {
  const table = document.getElementById("witnesses"), body = table.querySelector("tbody");
  body.replaceChildren();
  table.hidden = shown.witnesses.length === 0;
  let good = 0;
  for (const witness of shown.witnesses.slice(0, MOST_WITNESSES)) {
    let size = "", verdict = "agrees";
    try {
      const its = await openCheckpoint(witness.note, key);
      size = String(its.size);
      if (its.size > head.size) verdict = "has seen a newer checkpoint";
      else await verifyConsistency(its.size, its.root, head.size, head.root, await consistency(its, head));
      good += 1;
    } catch (error) {
      verdict = String(error.message ?? error);
    }
    const row = body.insertRow();
    for (const text of [witness.node, size, verdict]) row.insertCell().textContent = text;
  }
  say(list, `${good} of ${shown.witnesses.length} witnesses agree`, good === Math.min(shown.witnesses.length, MOST_WITNESSES));
  for (const [node, codes] of Object.entries(shown.alarms)) say(list, `the agent of ${node} accuses a log: ${codes.join(", ")}`, false);
}

async function verifyRecord(button) {
  const verdict = button.parentElement.querySelector(".verdict");
  const line = button.parentElement.querySelector(".line").textContent;
  try {
    const { head } = await checkpoint();
    const record = Number(button.dataset.record);
    demand(record <= head.size, "the next checkpoint will cover it; try again in ten seconds");
    const found = await ask(`/v1/audit/proof?record=${record}&size=${head.size}`);
    await verifyInclusion(await leafHash(line), record - 1, head.size, head.root, found.inclusion.map(bytesOf));
    verdict.textContent = `✓ record ${record} is among the ${head.size} that the signed checkpoint covers`;
  } catch (error) {
    verdict.textContent = `✗ ${error.message ?? error}`;
    verdict.classList.add("bad-word");
  }
}

const verifier = document.getElementById("verifier");
if (verifier) {
  verifier.hidden = false;
  document.querySelector(".no-script").hidden = true;
  for (const button of document.querySelectorAll(".verify-record")) {
    button.hidden = false;
    button.addEventListener("click", () => verifyRecord(button));
  }
  document.getElementById("verify-log").addEventListener("click", () =>
    verifyLog(document.getElementById("verified")),
  );
}
