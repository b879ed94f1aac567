// Defaults that a panel's JSON leaves out. Grafana's panels add them, and the packages do not have them.

import { fieldMatchers, Registry, standardTransformers, standardTransformersRegistry } from '@grafana/data';

const STANDARD = ['unit', 'min', 'max', 'decimals', 'displayName', 'color', 'thresholds', 'mappings', 'noValue', 'links'];
const CUSTOM = [
  'align', 'axisLabel', 'cellOptions', 'drawStyle', 'fillBelowTo', 'fillOpacity', 'filterable', 'lineStyle', 'lineWidth', 'minWidth',
  'showPoints', 'stacking', 'thresholdsStyle', 'width', 'wrapText',
];
const PALETTE = { mode: 'palette-classic' };
const BY_VALUE = { mode: 'thresholds' };

const DEFAULTS = {
  timeseries: { color: PALETTE, custom: { lineInterpolation: 'linear', gradientMode: 'none', barAlignment: 0, spanNulls: false } },
  'state-timeline': { color: BY_VALUE },
  stat: { color: BY_VALUE },
  bargauge: { color: BY_VALUE },
  table: { color: BY_VALUE, custom: { cellOptions: { type: 'auto' } } },
};

const property = (id, path, isCustom) => ({
  id, path, isCustom, name: id, description: id, settings: {}, process: (value) => value, shouldApply: () => true,
});

/** The properties that a panel may set. */
export const properties = new Registry(() => [
  ...STANDARD.map((name) => property(name, name, false)),
  ...CUSTOM.map((name) => property(`custom.${name}`, name, true)),
]);

/** A panel's field configuration with the defaults of its type. An unknown property is an error. */
export function fieldConfig(panel) {
  const { defaults, overrides } = panel.fieldConfig;
  const used = [
    ...Object.keys(defaults).filter((name) => name !== 'custom'),
    ...Object.keys(defaults.custom ?? {}).map((name) => `custom.${name}`),
    ...overrides.flatMap((it) => it.properties.map(({ id }) => id)),
  ];
  const strange = used.filter((id) => !properties.getIfExists(id));
  if (strange.length > 0) throw new Error(`${panel.title}: ${strange} is not drawn`);
  overrides.forEach(({ matcher }) => fieldMatchers.get(matcher.id));
  const { custom, ...others } = DEFAULTS[panel.type];
  return { defaults: { ...others, ...defaults, custom: { ...custom, ...defaults.custom } }, overrides };
}

const { mergeTransformer, organizeFieldsTransformer } = standardTransformers;
standardTransformersRegistry.setInit(() => [mergeTransformer, organizeFieldsTransformer].map((it) => (
  { id: it.id, name: it.name, transformation: async () => it, editor: () => null }
)));
