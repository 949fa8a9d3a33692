// The commands that every peer's script has, see tally.py, for those that run on Node.
import { createRequire } from "node:module";
import { join } from "node:path";

// The peers are installed elsewhere than this file is.
export const require = createRequire(join(process.env.PEER_FOLDER, "package.json"));

const BATCH = 1000;
const LOOK_EVERY_MS = 20;
const now = () => performance.now() / 1000;

// script: {setup, add(dues), addOne(due), left, work(started)}; a due time is in seconds since 1970, null is now.
export async function main(make) {
  const [name, store, ...options] = process.argv.slice(2);
  const script = await make(store);
  const answer = await { setup, enqueue, work }[name](script, ...options);
  // Not before it is written: standard output may be a pipe.
  process.stdout.write(JSON.stringify(answer) + "\n", () => process.exit(0));
}

async function setup(script) {
  await script.setup();
  return {};
}

async function enqueue(script, count, how, at, spread) {
  const jobs = Number(count);
  const due = (number) => (Number(at) ? Number(at) + (Number(spread) * number) / jobs : null);
  const dues = Array.from({ length: jobs }, (_, number) => due(number));
  const began = now();
  if (how === "bulk") for (let start = 0; start < jobs; start += BATCH) await script.add(dues.slice(start, start + BATCH));
  else for (const each of dues) await script.addOne(each);
  return { seconds: now() - began };
}

async function work(script, count, limit) {
  const jobs = Number(count);
  const until = now() + Number(limit);
  const late = [];
  let first = 0;
  const started = (due) => {
    first ||= now();
    late.push(Date.now() - due * 1000);
  };
  await script.work(started);
  while (!jobs || now() < until) {
    if (jobs && late.length >= jobs && (await script.left()) === 0) break;
    await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
  }
  return { seconds: now() - first, lateness_ms: late };
}
