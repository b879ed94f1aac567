// What Prometheus answered, as the data that panels draw.

import { applyFieldOverrides, cacheFieldDisplayNames, createDataFrame, FieldType, transformDataFrame } from '@grafana/data';
import { lastValueFrom } from 'rxjs';

import { fieldConfig, properties } from './settings.js';

const SECOND = 1000;

/** The frames of a panel as its settings would have them, for a theme. */
export async function frames(panel, answers, theme) {
  const isAlone = panel.targets.length === 1;
  const raw = panel.targets.flatMap((target) => {
    const series = answers[target.refId];
    if (target.format === 'table') return [table(series, isAlone ? 'Value' : `Value #${target.refId}`)];
    return series.map((it) => line(target, it));
  });
  const transformed = await lastValueFrom(transformDataFrame(panel.transformations ?? [], raw));
  const frames = applyFieldOverrides({
    data: transformed,
    fieldConfig: fieldConfig(panel),
    fieldConfigRegistry: properties,
    replaceVariables: (text) => text,
    theme,
    timeZone: 'utc',
  });
  cacheFieldDisplayNames(frames);
  return frames;
}

function line(target, { metric, values, value }) {
  const name = target.legendFormat.replace(/{{\s*(\w+)\s*}}/g, (_, label) => metric[label] ?? '');
  const points = values ?? [value];
  return createDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: points.map(([at]) => at * SECOND), config: { interval: SECOND } },
      {
        name: 'Value',
        type: FieldType.number,
        labels: metric,
        values: points.map(([, value]) => Number(value)),
        config: { displayNameFromDS: name },
      },
    ],
  });
}

function table(series, name) {
  const labels = [...new Set(series.flatMap(({ metric }) => Object.keys(metric)))].sort();
  return createDataFrame({
    fields: [
      { name: 'Time', type: FieldType.time, values: series.map(({ value }) => value[0] * SECOND) },
      ...labels.map((label) => ({
        name: label, type: FieldType.string, values: series.map(({ metric }) => metric[label] ?? ''), config: { filterable: true },
      })),
      { name, type: FieldType.number, values: series.map(({ value }) => Number(value[1])) },
    ],
  });
}
