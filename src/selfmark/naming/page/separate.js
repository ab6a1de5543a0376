// Move marks that lie on each other apart, so that each can be seen and clicked.

const STEPS = 200; // the worst case in a test, 30 marks on one spot, takes about 100

// Return places of the marks, [[x, y], ...], such that any two are at least `distance` apart (up to 2 %). Marks that do not overlap
// others keep their place. Marks on exactly the same spot leave it in different directions, in the order of their numbers.
export function separate(places, distance) {
  const moved = places.map(([x, y]) => [x, y]);
  for (let step = 0; step < STEPS; step += 1) if (!pushApart(moved, distance)) break;
  return moved;
}

function pushApart(moved, distance) {
  let overlaps = false;
  for (let a = 0; a < moved.length; a += 1) {
    for (let b = a + 1; b < moved.length; b += 1) {
      let dx = moved[b][0] - moved[a][0], dy = moved[b][1] - moved[a][1];
      const apart = Math.hypot(dx, dy);
      if (apart >= 0.98 * distance) continue;
      overlaps = true;
      if (apart < 1e-6 * distance) { // no direction of their own: the golden angle spreads any number of them
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
