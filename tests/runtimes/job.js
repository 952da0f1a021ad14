// Objects in a map and in an array, and buffers: passes, jumps with changes, a checksum. For node, and for a browser's page.
function job(count) {
  const all = [], byNumber = new Map();
  for (let i = 0; i < count; i++) {
    const item = { number: i, text: "n" + (i * 7919), few: [i, i + 1, i + 2] };
    all.push(item);
    if (i % 4 === 0) byNumber.set(i * 3, item);
  }
  const bytes = new Uint8Array(64 << 20);
  for (let i = 0; i < bytes.length; i += 7) bytes[i] = i >> 5;
  let state = 1, sum = 0;
  for (let k = 0; k < 60000; k++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    all[(state >>> 3) % count].number += k;
  }
  for (let pass = 0; pass < 2; pass++) for (const item of all) sum = (Math.imul(sum, 3) + item.number + item.text.length + item.few[2]) >>> 0;
  for (const [key, item] of byNumber) sum = (sum + key * item.number) % 4294967296;
  for (let i = 0; i < bytes.length; i++) sum = (sum + bytes[i]) >>> 0;
  return "OK " + sum;
}
if (typeof process !== "undefined") console.log(job(1000000));
