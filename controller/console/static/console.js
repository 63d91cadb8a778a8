// What pages do beside being read: the map of the fleet, news, the theme. Nothing is evaluated.

const QUIET_MS = 60000;
const NEWS_MS = 3000;

// --- theme

const theme = document.getElementById("theme");
if (theme) {
  const isDark = () =>
    (document.documentElement.dataset.theme ??
      (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const label = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.hidden = false;
  label();
  theme.addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem("theme", next);
    label();
    drawMap();
  });
}
for (const one of document.querySelectorAll(".script-only")) one.hidden = false;

// --- map: a canvas for each group, a strip for each node, a square for each GPU

const GAP = 1;
let map = null;

export async function drawMap() {
  const place = document.getElementById("map");
  if (!place) return;
  if (map === null || map.from !== place.dataset.map) {
    const answer = await fetch(place.dataset.map, { headers: { Accept: "application/json" } });
    if (!answer.ok) return;
    map = { from: place.dataset.map, fleet: await answer.json() };
  }
  const style = getComputedStyle(document.documentElement);
  const colours = {};
  for (const [letter, state] of Object.entries(map.fleet.letters))
    colours[letter] = style.getPropertyValue(`--${state}`).trim() || "#475569";
  const count = map.fleet.groups.reduce((sum, x) => sum + x.nodes.length, 0);
  const side = count > 1000 ? 6 : 12;
  place.replaceChildren(...map.fleet.groups.flatMap((group) => drawGroup(group, place, colours, side)));
  place.dataset.drawn = String(count);
}

function counted(nodes) {
  return nodes === 1 ? "1 node" : `${nodes} nodes`;
}

/* As the filter of the pages: enough of a class's hash to tell it from others. */
function short(name) {
  return name.length > 32 && name.startsWith("v1:sha256:") ? `${name.slice(0, 22)}…` : name;
}

function drawGroup(group, place, colours, side) {
  const heading = document.createElement("h3");
  heading.textContent = `${short(group.name)} (${counted(group.nodes.length)})`;
  const most = Math.max(1, ...group.nodes.map((x) => x.cells.length));
  const width = Math.max(place.clientWidth, side), strip = most * (side + GAP) + side;
  const columns = Math.max(1, Math.floor(width / strip));
  const rows = Math.ceil(group.nodes.length / columns), height = rows * (side + 4);
  const canvas = document.createElement("canvas");
  const scale = height * devicePixelRatio > 16000 ? 1 : devicePixelRatio;
  canvas.width = Math.floor(width * scale);
  canvas.height = Math.max(1, Math.floor(height * scale));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Map of ${counted(group.nodes.length)}; the table has the same`);
  const brush = canvas.getContext("2d");
  brush.scale(scale, scale);
  group.nodes.forEach((node, index) => {
    const left = (index % columns) * strip, top = Math.floor(index / columns) * (side + 4);
    if (!node.cells) {
      brush.strokeStyle = colours.s;
      brush.strokeRect(left + 0.5, top + 0.5, side - 1, side - 1);
    }
    for (let gpu = 0; gpu < node.cells.length; gpu += 1) {
      brush.fillStyle = colours[node.cells[gpu]];
      brush.fillRect(left + gpu * (side + GAP), top, side, side);
    }
  });
  const at = (event) => {
    const column = Math.floor(event.offsetX / strip), row = Math.floor(event.offsetY / (side + 4));
    const node = column < columns ? group.nodes[row * columns + column] : undefined;
    const gpu = Math.floor((event.offsetX - column * strip) / (side + GAP));
    return node && { node, letter: node.cells[gpu], gpu };
  };
  canvas.addEventListener("mousemove", (event) => {
    const found = at(event);
    const state = found && found.letter ? `, GPU ${found.gpu}: ${map.fleet.letters[found.letter]}` : "";
    canvas.title = found ? `${found.node.name}: ${found.node.state}${state}` : "";
  });
  canvas.addEventListener("click", (event) => {
    const found = at(event);
    if (found) location.assign(`/ui/nodes/${encodeURIComponent(found.node.name)}`);
  });
  return [heading, canvas];
}

await drawMap();
addEventListener("resize", () => drawMap());

// --- news: the live part of the page is fetched again when something has changed

const live = document.getElementById("live");
const stale = document.getElementById("stale");
const said = document.getElementById("said");
let heard = Date.now(), wanted = 0;

function hear() {
  heard = Date.now();
  stale.hidden = true;
}

async function renew() {
  wanted = 0;
  if (live.contains(document.activeElement) || document.hidden) return;
  await htmx.ajax("GET", location.href, { target: "#live", select: "#live", swap: "outerHTML" });
  map = null;
  await drawMap();
  said.textContent = "The page shows what has changed.";
}

if (live && stale && document.querySelector('nav a[href="/"]')) {
  const news = new EventSource("/v1/events");
  news.addEventListener("open", hear);
  for (const kind of ["node", "reservations"])
    news.addEventListener(kind, () => {
      hear();
      wanted ||= setTimeout(renew, NEWS_MS);
    });
  setInterval(() => {
    if (news.readyState === EventSource.OPEN) hear();
    stale.hidden = Date.now() - heard < QUIET_MS;
  }, 5000);
}
