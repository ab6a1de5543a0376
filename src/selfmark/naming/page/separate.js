// Move overlapping marks apart, so that each can be seen and clicked.

const MAX_STEPS = 200; // 30 marks on one spot need about 100 steps

// Return places for marks, [[x, y], ...]. Any two are at least 98 % of `distance` apart, if MAX_STEPS suffice. A mark
// keeps its place unless another mark overlaps it, or is pushed onto it. Marks on exactly the same spot are pushed in different directions.
export function separate(places, distance) {
  const moved = places.map(([x, y]) => [x, y]);
  for (let step = 0; step < MAX_STEPS; step += 1) if (!pushApart(moved, distance)) break;
  return moved;
}

// Push every two overlapping marks apart once. Return whether any marks overlapped.
function pushApart(moved, distance) {
  let overlaps = false;
  for (let a = 0; a < moved.length; a += 1) {
    for (let b = a + 1; b < moved.length; b += 1) {
      let dx = moved[b][0] - moved[a][0], dy = moved[b][1] - moved[a][1];
      const apart = Math.hypot(dx, dy);
      if (apart >= 0.98 * distance) continue;
      overlaps = true;
      if (apart < 1e-6 * distance) {
        // Two marks on the same spot have no direction. Multiples of the golden angle spread any number of marks.
        const angle = b * 2.399963;
        [dx, dy] = [Math.cos(angle), Math.sin(angle)];
      } else [dx, dy] = [dx / apart, dy / apart];
      const push = (distance - apart) / 2;
      moved[a] = [moved[a][0] - push * dx, moved[a][1] - push * dy];
      moved[b] = [moved[b][0] + push * dx, moved[b][1] + push * dy];
    }
  }
  return overlaps;
}
