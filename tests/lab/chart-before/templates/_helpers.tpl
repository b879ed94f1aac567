{{- define "portreeve.name" -}}
{{- .Values.fullnameOverride | default "portreeve" | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "portreeve.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "portreeve.name" .) -}}
{{- else -}}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The ServiceAccount whose tokens agents accept, and the Role of who may ask for them. */}}
{{- define "portreeve.reader" -}}
{{ include "portreeve.name" . | trunc 56 | trimSuffix "-" }}-reader
{{- end -}}

{{/* Cluster-wide objects carry the namespace, so that two releases do not meet. */}}
{{- define "portreeve.clusterName" -}}
{{- $name := include "portreeve.name" . -}}
{{- if eq $name .Release.Namespace -}}{{ $name }}{{- else -}}{{ printf "%s-%s" .Release.Namespace $name }}{{- end -}}
{{- end -}}

{{- define "portreeve.selector" -}}
app.kubernetes.io/name: portreeve
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "portreeve.labels" -}}
{{ include "portreeve.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "portreeve.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What a container may do, by profile. */}}
{{- define "portreeve.securityContext" -}}
{{- $profile := .Values.profile -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
{{- if eq $profile "minimal" }}
runAsNonRoot: true
runAsUser: 65534
runAsGroup: 65534
{{- else }}
runAsUser: 0
runAsGroup: 0
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}
appArmorProfile:
  type: Unconfined
{{- end }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
capabilities:
  drop: [ALL]
{{- if eq $profile "attribution" }}
  add: [SYS_PTRACE, DAC_READ_SEARCH]
{{- else if eq $profile "guard" }}
  add: [SYS_PTRACE, DAC_READ_SEARCH, NET_ADMIN]
{{- end }}
{{- end -}}

{{/* A file of alerts or a dashboard, with links to where this documentation is read. */}}
{{- define "portreeve.seen" -}}
{{- .root.Files.Get .file | replace "docs/" (printf "%sdocs/" .root.Values.documentation) | trim -}}
{{- end -}}
