// A JavaScript heap under garbage collection: a map of objects that live long, of which some are replaced all the time, and much that
// dies young. heap.js COUNT STEPS
const [count, steps] = process.argv.slice(2).map(Number);
let state = 1;
function random(below) {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return Math.floor(state / 4294967296 * below);
}
function item(i, version) {
  return { id: i, version, name: `item ${i} of ${i % 97}`, price: i * 1.25, tags: [i, i % 7, version], parent: null };
}
const all = new Map();
let before = null;
for (let i = 0; i < count; i++) {
  const made = item(i, 0);
  made.parent = i % 10 === 0 ? null : before;
  before = made;
  all.set(`key-${i}`, made);
}
let sum = 0;
for (let step = 0; step < steps; step++) {
  // Cubed: few are asked for often.
  const u = random(1 << 20) / (1 << 20), i = Math.floor(u * u * u * count);
  const found = all.get(`key-${i}`);
  if (step % 8 === 0) all.set(`key-${i}`, item(i, found.version + 1));
  const young = found.tags.map((tag) => ({ tag, text: found.name + tag }));
  sum = (sum + young.reduce((length, one) => length + one.text.length, 0) + found.version) >>> 0;
}
let total = 0;
for (const [key, one] of all) {
  let depth = 0;
  for (let up = one.parent; up; up = up.parent) depth++;
  total = (Math.imul(total, 31) + key.length + one.id + one.version * 7 + one.name.length + depth + one.tags[1]) >>> 0;
}
console.log(sum, total, all.size);
