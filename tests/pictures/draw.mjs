// Draws the dashboards and the agent's page from the files that a test of the lab kept, light and dark. Fails if a text is not readable.
// `make pictures` calls it with the folder of the kept files, the dashboards' folder and the pictures' folder.

import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { build } from 'esbuild';
import { chromium } from 'playwright-core';

const [kept, dashboards, pictures] = process.argv.slice(2);
const FLAGS = [
  '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync',
];
const ORIGIN = 'http://pictures.example/';
const { resolve } = createRequire(import.meta.url);
const packaged = (name) => dirname(resolve(`${name}/package.json`));
// What Grafana's components ask their server for, and the packages that have it.
const ICONS = [/^\/public\/build\/(.*)/, (path) => join(packaged('@grafana/ui'), 'dist/public', path)];
const WEIGHTS = { Regular: 400, Medium: 500 };
const font = (name) => (weight) => join(packaged(`@fontsource/${name}`), `files/${name}-latin-${WEIGHTS[weight]}-normal.woff2`);
const FONTS = [
  [/^\/public\/fonts\/inter\/Inter-(\w+)\.woff2/, font('inter')],
  [/^\/public\/fonts\/roboto\/RobotoMono-(\w+)\.woff2/, font('roboto-mono')],
];
// As high as any dashboard: tables draw what can be seen.
const [WIDTH, HEIGHT] = [1200, 3000];
const MODES = ['light', 'dark'];
// What few nodes answered and many, with the dashboards that are drawn of each. One is looked at and not kept.
const FLEETS = { '': ['fleet', 'incident', 'node', 'agent'], '-500': ['fleet', 'incident'] };
const isKept = (picture) => picture !== 'incident';
// The second is looked at and not kept.
const PAGES = ['page', 'page-well'];
const SIZES = { phone: [390, 800], desktop: [1280, 800] };

const seen = join(kept, 'seen');
const folder = await mkdtemp(join(tmpdir(), 'portreeve-pictures-'));
const unreadable = [];
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: FLAGS });
try {
  for (const place of [pictures, seen]) await mkdir(place, { recursive: true });
  await bundle();
  for (const mode of MODES) {
    for (const [size, names] of Object.entries(FLEETS)) {
      const { answers, ...span } = JSON.parse(await readFile(join(kept, `answers${size}.json`)));
      for (const name of names) {
        const dashboard = JSON.parse(await readFile(join(dashboards, `${name}.json`)));
        const drawing = { answers: answers[name], ...span, mode, width: WIDTH, isKept: isKept(name + size) };
        await draw(name + size, dashboard, drawing);
      }
    }
    for (const name of PAGES) for (const size in SIZES) await photograph(name, size, mode);
  }
} finally {
  await browser.close();
  await rm(folder, { recursive: true });
}
if (unreadable.length > 0) throw new Error(unreadable.join('\n'));

/** Makes the page that draws. */
async function bundle() {
  await build({
    entryPoints: [fileURLToPath(new URL('src/main.jsx', import.meta.url))],
    bundle: true,
    minify: true,
    outfile: join(folder, 'main.js'),
    format: 'iife',
    jsx: 'automatic',
    logLevel: 'error',
    define: { 'process.env.NODE_ENV': '"production"', global: 'window' },
    loader: { '.ttf': 'empty', '.woff': 'empty', '.woff2': 'dataurl', '.svg': 'dataurl', '.png': 'dataurl' },
  });
  const head = '<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="main.css"><style>body { margin: 0 }</style>';
  await writeFile(join(folder, 'drawing.html'), `${head}<div id="root"></div><script src="main.js"></script>`);
}

async function draw(name, dashboard, drawing) {
  const { page, complaints } = await open('drawing.html', [WIDTH, HEIGHT], drawing.mode);
  await page.evaluate(([dashboard, drawing]) => window.draw(dashboard, drawing), [dashboard, drawing]);
  await page.evaluate(() => document.fonts.ready);
  await page.waitForLoadState('networkidle');
  complaints.push(...await page.evaluate(() => {
    const within = (it) => it.closest('[data-panel]').dataset.panel;
    const silent = [...document.querySelectorAll('[data-empty]')].filter((it) => it.textContent === 'No data');
    const undrawn = [...document.querySelectorAll('[data-panel]')].filter((it) => it.textContent.trim() === '');
    const isCut = (it) => getComputedStyle(it).textOverflow === 'ellipsis' && it.scrollWidth > it.clientWidth + 1;
    const cut = [...document.querySelectorAll('[data-panel] *')].filter(isCut);
    return [
      ...silent.map((it) => `${within(it)} is empty and does not say why`),
      ...undrawn.map((it) => `${within(it)} was not drawn`),
      ...cut.map((it) => `${within(it)} cuts "${it.textContent}"`),
    ];
  }));
  await finish(page, page.locator('#root > div'), `${name}-${drawing.mode}`, complaints, drawing.isKept);
}

/** The agent's own page, as a browser shows it, and whether everybody can read it. */
async function photograph(name, size, mode) {
  const { page, complaints } = await open(`${name}.html`, SIZES[size], mode);
  const tooWide = await page.evaluate(() => document.documentElement.scrollWidth > window.innerWidth);
  if (tooWide) complaints.push('it has to be scrolled sideways');
  await page.evaluate(await readFile(resolve('axe-core'), 'utf8'));
  const { violations } = await page.evaluate(() => window.axe.run());
  complaints.push(...violations.map(({ help, nodes }) => `${help}: ${nodes.map(({ html }) => html)}`));
  await finish(page, page.locator('html'), `${name}-${size}-${mode}`, complaints);
}

async function open(file, [width, height], mode) {
  const page = await browser.newPage({ viewport: { width, height }, colorScheme: mode });
  const complaints = [];
  page.on('pageerror', (error) => complaints.push(error.stack));
  page.on('console', (message) => message.type() === 'error' && complaints.push(message.text()));
  await page.route('**', async (route) => {
    await route.fulfill({ path: place(new URL(route.request().url()).pathname) });
  });
  await page.goto(ORIGIN + file);
  return { page, complaints };
}

/** The file that stands for a path: nothing is asked of the network. */
function place(pathname) {
  for (const [pattern, file] of [ICONS, ...FONTS]) {
    const match = pattern.exec(pathname);
    if (match) return file(match[1]);
  }
  return join(pathname.startsWith('/page') ? kept : folder, pathname);
}

async function finish(page, shown, name, complaints, isKept = !name.startsWith('page-well')) {
  const keptFor = isKept ? pictures : seen;
  await shown.screenshot({ path: join(keptFor, `${name}.png`) });
  await page.close();
  unreadable.push(...complaints.map((it) => `${name}: ${it}`));
}
