// A whole dashboard on Grafana's grid. `window.draw(dashboard, drawing)` draws it.

import { createTheme, ThemeContext } from '@grafana/data';
import { initPluginTranslations } from '@grafana/i18n';
import { GlobalStyles, PanelChrome, useTheme2 } from '@grafana/ui';
import { createRoot } from 'react-dom/client';

import { frames } from './frames.js';
import { Inside } from './panels.jsx';

const COLUMNS = 24;
const ROW = 30;
const GAP = 8;

function Dashboard({ panels, width, span }) {
  const cell = (width - GAP * (COLUMNS + 1)) / COLUMNS;
  const bottom = Math.max(...panels.map(({ panel: { gridPos } }) => gridPos.y + gridPos.h));
  const place = ({ x, y, w, h }) => ({
    left: GAP + x * (cell + GAP), top: GAP + y * (ROW + GAP), width: w * (cell + GAP) - GAP, height: h * (ROW + GAP) - GAP,
  });
  return (
    <div style={{ position: 'relative', width, height: bottom * (ROW + GAP) + GAP }}>
      {panels.map(({ panel, frames }) => {
        const at = place(panel.gridPos);
        return (
          <div key={panel.id} data-panel={panel.title} style={{ position: 'absolute', ...at }}>
            {panel.type === 'row' ? <Heading>{panel.title}</Heading> : (
              <PanelChrome title={panel.title} description={panel.description} width={at.width} height={at.height}>
                {(width, height) => <Inside panel={panel} frames={frames} width={width} height={height} span={span} />}
              </PanelChrome>
            )}
          </div>
        );
      })}
    </div>
  );
}

function Heading({ children }) {
  const { typography, colors } = useTheme2();
  return <div style={{ ...typography.h5, color: colors.text.primary, lineHeight: `${ROW}px` }}>{children}</div>;
}

window.draw = async (dashboard, { answers, from, to, mode, width }) => {
  await initPluginTranslations('portreeve');
  const theme = createTheme({ colors: { mode } });
  const panels = await Promise.all(dashboard.panels.map(async (panel) => ({
    panel, frames: panel.type === 'row' ? [] : await frames(panel, answers[panel.id], theme),
  })));
  document.body.style.background = theme.colors.background.canvas;
  createRoot(document.getElementById('root')).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <Dashboard panels={panels} width={width} span={[from * 1000, to * 1000]} />
    </ThemeContext.Provider>
  );
};
